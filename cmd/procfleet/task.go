package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
)

const defaultServer = "http://127.0.0.1:8080"

func serverFlag(flags *pflag.FlagSet, server *string) {
	flags.StringVar(server, "server", defaultServer, "URL of a dispatcher")
}

// serverHint is the flag that makes a suggested command ask the same server.
func serverHint(server string) string {
	if server == defaultServer {
		return ""
	}
	return " --server " + server
}

func newClient(server string) (*apiclient.Client, error) {
	client, err := apiclient.New(server)
	if err != nil {
		return nil, usageError("--server: %w", err)
	}
	return client, nil
}

// taskFlags are the flags that the task commands share.
type taskFlags struct {
	server string
	json   bool
}

func newTask() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Short:   "Look at tasks",
		Example: "  procfleet task list\n  procfleet task watch GSETASK:20260102030405:6789",
		Args:    usageArgs(cobra.NoArgs),
		RunE:    nameACommand,
	}
	var f taskFlags
	serverFlag(cmd.PersistentFlags(), &f.server)
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "write JSON")
	cmd.AddCommand(newTaskGet(&f), newTaskList(&f), newTaskResults(&f), newTaskWatch(&f))
	return cmd
}

func newTaskGet(f *taskFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "get ID",
		Short:   "Show where a task stands",
		Example: "  procfleet task get GSETASK:20260102030405:6789",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := newClient(f.server)
			if err != nil {
				return err
			}
			task, err := client.Task(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.json {
				return writeJSON(cmd.OutOrStdout(), task)
			}
			return writeTask(cmd.OutOrStdout(), task)
		},
	}
}

func newTaskList(f *taskFlags) *cobra.Command {
	var page apiclient.Page
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tasks, newest first",
		Example: "  procfleet task list --limit 20",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := newClient(f.server)
			if err != nil {
				return err
			}
			list, err := client.Tasks(cmd.Context(), page)
			if err != nil {
				return err
			}
			if f.json {
				return writeJSON(cmd.OutOrStdout(), list)
			}
			return writeTaskList(cmd.OutOrStdout(), list, "--limit "+strconv.Itoa(page.Limit)+serverHint(f.server))
		},
	}
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "most tasks to show; 1 to 1000")
	cmd.Flags().StringVar(&page.Cursor, "cursor", "", "continue a list: the next of the page before")
	return cmd
}

// writeTaskList writes a page of tasks; flags are those that ask for the next.
func writeTaskList(out io.Writer, list apiclient.TaskPage, flags string) error {
	if len(list.Tasks) == 0 {
		_, err := fmt.Fprintln(out, "no tasks; submit one with: procfleet op")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tACTIONS\tSTATE\tITEMS\tFAILED\tOPEN\tCREATED")
	for i := range list.Tasks {
		t := &list.Tasks[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", t.ID, actionsText(*t), t.State, t.Items, t.Counts.Failed(), t.Counts.Open(), t.CreatedAt.Format(time.DateTime))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if list.Next != "" {
		_, err := fmt.Fprintf(out, "more: procfleet task list --cursor %s %s\n", list.Next, flags)
		return err
	}
	return nil
}

func newTaskResults(f *taskFlags) *cobra.Command {
	var page apiclient.Page
	var state string
	cmd := &cobra.Command{
		Use:   "results ID",
		Short: "Show the results of a task, failures first",
		Example: `  procfleet task results GSETASK:20260102030405:6789
  procfleet task results GSETASK:20260102030405:6789 --state failed --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			page.State = procfleet.State(state)
			if state != "" && !slices.Contains(procfleet.States(), page.State) {
				return usageError("--state %q: use one of %v", state, procfleet.States())
			}
			client, err := newClient(f.server)
			if err != nil {
				return err
			}
			if page.Limit > 0 {
				return f.resultPage(cmd, client, args[0], page)
			}
			if f.json {
				all, err := allResults(cmd.Context(), client, args[0], page)
				if err != nil {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), apiclient.ResultPage{Results: all})
			}
			return eachPage(cmd.Context(), client, args[0], page, func(results []apiclient.Result) error {
				return writeResults(cmd.OutOrStdout(), results)
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only items in this state, for example failed")
	cmd.Flags().IntVar(&page.Limit, "limit", 0, "most results to show, 1 to 1000 (default: all)")
	cmd.Flags().StringVar(&page.Cursor, "cursor", "", "continue a list: the next of the page before")
	return cmd
}

// resultPage shows one page of results and how to come to the next.
func (f *taskFlags) resultPage(cmd *cobra.Command, client *apiclient.Client, id string, page apiclient.Page) error {
	results, err := client.Results(cmd.Context(), id, page)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), results)
	}
	if err := writeResults(cmd.OutOrStdout(), results.Results); err != nil || results.Next == "" {
		return err
	}
	flags := ""
	if page.State != "" {
		flags = " --state " + string(page.State)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "more: procfleet task results %s --cursor %s --limit %d%s%s\n",
		id, results.Next, page.Limit, flags, serverHint(f.server))
	return err
}

func newTaskWatch(f *taskFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "watch ID",
		Short:   "Show the progress of a task until it is finished",
		Example: "  procfleet task watch GSETASK:20260102030405:6789",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := newClient(f.server)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if f.json {
				out = cmd.ErrOrStderr()
			}
			task, err := watchTask(cmd, client, args[0], f.server, out)
			if err != nil {
				return err
			}
			if f.json {
				return writeTaskJSON(cmd.Context(), cmd.OutOrStdout(), client, task)
			}
			return writeOutcome(cmd.Context(), out, client, f.server, task)
		},
	}
}
