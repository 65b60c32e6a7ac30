package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Completion queries the server, so it is bounded: a shell waits for it.
const (
	completionTime  = time.Second
	completionItems = 200
)

// completing returns the server flags of a command whose arguments are being completed, and a
// client; nil if there is no server to ask.
func completing(cmd *cobra.Command) (*client.Client, context.Context, context.CancelFunc) {
	s := serverFlags{flags: cmd.Flags()}
	s.url, _ = cmd.Flags().GetString("server")
	s.token, _ = cmd.Flags().GetString("token")
	s.contextName, _ = cmd.Flags().GetString("context")
	c, err := s.connect(client.Config{Timeout: completionTime})
	if err != nil {
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	return c, ctx, cancel
}

// completeProcesses completes registered processes, as NAMESPACE/NAME, and hosts.
func completeProcesses(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, ctx, cancel := completing(cmd)
	if c == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cancel()
	var found []cobra.Completion
	seen := map[string]bool{}
	add := func(text string) {
		if !seen[text] {
			seen[text] = true
			found = append(found, text)
		}
	}
	page, err := c.FleetPage(ctx, client.FleetQuery{HostQuery: client.HostQuery{Query: client.Query{PageSize: completionItems}}})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for i := range page.Items {
		if p := &page.Items[i]; p.Name != "" {
			add(p.Namespace + "/" + p.Name)
		}
	}
	for i := range page.Items {
		add(page.Items[i].Host.String())
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeTasks completes the ids of the newest tasks.
func completeTasks(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, ctx, cancel := completing(cmd)
	if c == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cancel()
	page, err := c.TaskPage(ctx, client.TaskQuery{Query: client.Query{PageSize: completionItems}})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found := make([]cobra.Completion, len(page.Items))
	for i := range page.Items {
		t := &page.Items[i]
		found[i] = cobra.CompletionWithDesc(string(t.ID), actionsText(*t)+" "+taskStateText(t))
	}
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

func completeActions(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var all []cobra.Completion
	for _, action := range procfleet.Actions() {
		all = append(all, string(action))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	all, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for name := range all.Contexts {
		names = append(names, name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
