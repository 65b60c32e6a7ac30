package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// freezeFlags are the flags common to the freeze commands.
type freezeFlags struct {
	server    serverFlags
	hosts     hostFlags
	namespace string
	business  string
	json      bool
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
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length <= 0 {
				return command.Usagef("give the duration with --for, for example --for 2h")
			}
			return f.freeze(cmd, client.Freezing{Namespace: f.namespace, TTL: procfleet.Duration(length), Reason: reason})
		},
	}
	f.server.register(cmd.PersistentFlags())
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "JSON output")
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
	c, err := f.server.submitter(cmd)
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
	return f.print(cmd.OutOrStdout(), done, headline, done.Results)
}

// print writes the response as JSON, or the headline and the outcome of each host. It
// returns errHostsFailed if a host failed.
func (f *freezeFlags) print(out io.Writer, response any, headline string, outcomes []client.Outcome) error {
	if f.json {
		if err := writeJSON(out, response); err != nil {
			return err
		}
		return hostsFailed(outcomes)
	}
	if _, err := io.WriteString(out, headline); err != nil {
		return err
	}
	if err := writeOutcomes(out, outcomes); err != nil {
		return err
	}
	return hostsFailed(outcomes)
}

func newFreezeLift(f *freezeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lift",
		Short: "End freezes early",
		Long: `End freezes early. Name them as in freeze: a freeze of a whole host does not end by naming one of its namespaces. Hosts
without such a freeze have code 829.`,
		Example: "  procfleet freeze lift --host 0:10.0.0.1\n  procfleet freeze lift --namespace shop",
		Args:    command.NoArgs,
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
	return f.print(cmd.OutOrStdout(), done, fmt.Sprintf("%d lifted\n", done.Lifted), done.Results)
}

func newFreezeList(f *freezeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List freezes",
		Example: "  procfleet freeze list\n  procfleet freeze list --json",
		Args:    command.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.list(cmd) },
	}
}

func (f *freezeFlags) list(cmd *cobra.Command) error {
	c, err := f.server.client(cmd)
	if err != nil {
		return err
	}
	freezes := []client.Freeze{}
	for one, err := range c.Freezes(cmd.Context(), client.Query{}) {
		if err != nil {
			return err
		}
		freezes = append(freezes, one)
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), map[string][]client.Freeze{"freezes": freezes})
	}
	return writeFreezes(cmd.OutOrStdout(), freezes)
}

func writeFreezes(out io.Writer, freezes []client.Freeze) error {
	if len(freezes) == 0 {
		_, err := fmt.Fprintln(out, "no freezes")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
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
