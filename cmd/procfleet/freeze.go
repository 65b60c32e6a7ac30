package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// freezeFlags are the flags common to the freeze commands.
type freezeFlags struct {
	serverFlags
	hosts               hostFlags
	namespace, business string
}

func newFreeze() *cobra.Command {
	var f freezeFlags
	var length time.Duration
	var reason string
	cmd := &cobra.Command{
		Use:   "freeze",
		Short: "Suspend automatic starts and limits for a while",
		Long: `Suspend automatic starts and limits for a while, for example during a release: of all processes of the given hosts,
with --namespace only of this namespace, and with --namespace and no host of this namespace on all hosts.

Operations still run. A freeze ends after --for; freezing again replaces it. The command exits with 3 if some host is
unknown.`,
		Example: `  procfleet freeze --host 0:10.0.0.1 --for 2h --reason "release 7"
  procfleet freeze --namespace shop --for 30m
  procfleet freeze list
  procfleet freeze lift --namespace shop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length <= 0 {
				return command.Usagef("give the duration with --for, for example --for 2h")
			}
			return f.freeze(cmd, client.Freezing{Namespace: f.namespace, TTL: procfleet.Duration(length), Reason: reason})
		},
	}
	f.register(cmd.PersistentFlags())
	f.registerScope(cmd)
	cmd.Flags().DurationVar(&length, "for", 0, "duration of the freeze, 1s to 24h (required)")
	cmd.Flags().StringVar(&reason, "reason", "", "reason shown by freeze list")
	cmd.AddCommand(newFreezeLift(&f), newFreezeList(&f))
	return cmd
}

// registerScope adds the flags that select hosts and processes.
func (f *freezeFlags) registerScope(cmd *cobra.Command) {
	f.hosts.register(cmd.Flags())
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "namespace of the processes; on all hosts without --host")
	cmd.Flags().StringVar(&f.business, "biz", "", "business id; required of applications limited to some businesses")
}

// scope returns the selected hosts and a client. Without hosts, the command applies to
// a namespace on all hosts.
func (f *freezeFlags) scope(cmd *cobra.Command) (client.Targets, *client.Client, error) {
	hosts, err := f.hosts.any(cmd)
	if err != nil {
		return client.Targets{}, nil, err
	}
	if len(hosts) == 0 && f.namespace == "" {
		return client.Targets{}, nil, command.Usagef("name --host 0:10.0.0.1 or --hosts-file FILE, --namespace NAME, or both")
	}
	c, err := f.submitter(cmd)
	return client.Targets{Hosts: hosts, Business: f.business}, c, err
}

func (f *freezeFlags) freeze(cmd *cobra.Command, how client.Freezing) error {
	on, c, err := f.scope(cmd)
	if err != nil {
		return err
	}
	var done client.Frozen
	if len(on.Hosts) == 0 {
		done, err = c.FreezeEverywhere(cmd.Context(), how, f.business)
	} else {
		done, err = c.Freeze(cmd.Context(), how, on)
	}
	if err != nil {
		return err
	}
	headline := ""
	if done.Until != nil {
		headline = fmt.Sprintf("frozen until %s\n", done.Until.Local().Format(time.RFC3339))
	}
	return f.printOutcomes(cmd.OutOrStdout(), done, headline, done.Results)
}

func newFreezeLift(f *freezeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lift",
		Short: "End freezes early",
		Long: `End freezes early. Name them as in freeze: a freeze of a whole host does not end by naming one of its namespaces. Hosts
without such a freeze have code 829.`,
		Example: "  procfleet freeze lift --host 0:10.0.0.1\n  procfleet freeze lift --namespace shop",
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.lift(cmd) },
	}
	f.registerScope(cmd)
	return cmd
}

func (f *freezeFlags) lift(cmd *cobra.Command) error {
	on, c, err := f.scope(cmd)
	if err != nil {
		return err
	}
	var done client.Lifted
	if len(on.Hosts) == 0 {
		done, err = c.LiftEverywhere(cmd.Context(), f.namespace, f.business)
	} else {
		done, err = c.Lift(cmd.Context(), f.namespace, on)
	}
	if err != nil {
		return err
	}
	return f.printOutcomes(cmd.OutOrStdout(), done, fmt.Sprintf("%d lifted\n", done.Lifted), done.Results)
}

func newFreezeList(f *freezeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List freezes",
		Example: "  procfleet freeze list\n  procfleet freeze list --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.list(cmd) },
	}
}

func (f *freezeFlags) list(cmd *cobra.Command) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	freezes, err := collect(c.Freezes(cmd.Context(), client.Query{}))
	if err != nil {
		return err
	}
	return f.print(cmd.OutOrStdout(), map[string][]client.Freeze{"freezes": freezes}, func(out io.Writer) error { return writeFreezes(out, freezes) })
}

func writeFreezes(out io.Writer, freezes []client.Freeze) error {
	if len(freezes) == 0 {
		_, err := fmt.Fprintln(out, "no freezes")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "HOST\tNAMESPACE\tUNTIL\tBY\tREASON")
	for _, one := range freezes {
		host, namespace := "everywhere", "all"
		if !one.Host.IsZero() {
			host = one.Host.String()
		}
		if one.Namespace != "" {
			namespace = oneLine(one.Namespace)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", host, namespace, one.Until.Local().Format(time.RFC3339), oneLine(one.By), oneLine(one.Reason))
	}
	return table.Flush()
}
