package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// pruneFlags are the flags of `registration prune`.
type pruneFlags struct {
	*registrationFlags
	name nameFlags
	gone bool
	yes  bool
}

func newRegistrationPrune(shared *registrationFlags) *cobra.Command {
	f := pruneFlags{registrationFlags: shared}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove registrations on hosts that do not exist",
		Long: `Remove the registrations of a namespace on hosts without a live agent whose agents never reported the process: hosts that
never existed, or were never enrolled. With --gone also those on hosts whose agents are gone. Preview the removal with --plan.`,
		Example: `  procfleet registration prune --namespace shop --plan
  procfleet registration prune --namespace shop --name web --gone`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.name.register(cmd.Flags(), "all without it")
	cmd.Flags().Lookup("namespace").Usage = "namespace of the processes (required)"
	cmd.Flags().BoolVar(&f.gone, "gone", false, "also hosts whose agents are gone")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "no confirmation of many removals")
	planFlags(cmd.Flags(), &f.plan, "preview without changes")
	return cmd
}

func (f *pruneFlags) run(cmd *cobra.Command) error {
	if f.name.namespace == "" {
		return command.Usagef("name the namespace with --namespace")
	}
	on, err := f.hosts.any(cmd)
	if err != nil {
		return err
	}
	c, err := f.submitter(cmd)
	if err != nil {
		return err
	}
	pruned, err := f.unused(cmd, c, on)
	switch {
	case err != nil:
		return err
	case f.plan:
		return f.printRegistered(cmd.OutOrStdout(), pruned)
	case len(pruned) > askedAbove && !f.yes && answers(cmd):
		if err := askUser(cmd, fmt.Sprintf("remove %d registrations?", len(pruned))); err != nil {
			return err
		}
	}
	return f.remove(cmd, c, pruned)
}

// unused returns the processes whose registrations are to be removed, on the given hosts or
// on all.
func (f *pruneFlags) unused(cmd *cobra.Command, c *client.Client, on []procfleet.Host) (found []client.Process, err error) {
	for p, err := range c.Processes(cmd.Context(), f.name.namespace, client.Query{}) {
		if err != nil {
			return nil, err
		}
		selected := (f.name.name == "" || p.Name == f.name.name) && (len(on) == 0 || slices.Contains(on, p.Host))
		if selected && p.Registration != nil && !p.Alive && (f.gone || p.Reported == nil) {
			found = append(found, p)
		}
	}
	return found, nil
}

// removedAtOnce is the maximum number of hosts of one removal.
const removedAtOnce = 1000

func (f *pruneFlags) remove(cmd *cobra.Command, c *client.Client, found []client.Process) error {
	hosts := map[string][]procfleet.Host{}
	for i := range found {
		hosts[found[i].Name] = append(hosts[found[i].Name], found[i].Host)
	}
	var outcomes []client.Outcome
	var failed error
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for part := range slices.Chunk(hosts[name], removedAtOnce) {
			done, err := c.Unregister(cmd.Context(), f.name.namespace, name, client.Targets{Hosts: part})
			outcomes, failed = append(outcomes, done...), errors.Join(failed, err)
		}
	}
	headline := fmt.Sprintf("%d registrations removed\n", len(outcomes))
	return errors.Join(f.printOutcomes(cmd.OutOrStdout(), map[string][]client.Outcome{"results": outcomes}, headline, outcomes), failed)
}
