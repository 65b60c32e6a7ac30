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

// freezeFlags are the flags that the freeze commands share.
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
		Long: `Suspend automatic starts and limits for a while, as during a release: of all processes of hosts,
with --namespace of those of one namespace there, and with --namespace alone of that namespace everywhere.

Operations are carried out all the same. A freeze ends by itself; freezing again begins anew. The command
ends with exit code 3 when some host is not known.`,
		Example: `  procfleet freeze --host 0:10.0.0.1 --for 2h --reason "release 7"
  procfleet freeze --namespace shop --for 30m
  procfleet freeze list
  procfleet freeze lift --namespace shop`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length <= 0 {
				return command.Usagef("say for how long with --for, for example --for 2h")
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

// registerScope adds the flags that say what is meant.
func (f *freezeFlags) registerScope(cmd *cobra.Command) {
	f.hosts.register(cmd.Flags())
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "namespace of the processes; on all hosts without --host")
	cmd.Flags().StringVar(&f.business, "biz", "", "business id; required of applications limited to some businesses")
}

// scope returns the hosts that are named, and a client for them. No host is a
// namespace everywhere.
func (f *freezeFlags) scope(cmd *cobra.Command) (client.Targets, *client.Client, error) {
	hosts, err := f.hosts.any(cmd)
	if err != nil {
		return client.Targets{}, nil, err
	}
	if len(hosts) == 0 && f.namespace == "" {
		return client.Targets{}, nil, command.Usagef("say what: --host 0:10.0.0.1 or --hosts-file FILE, --namespace NAME, or both")
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
	return f.tell(cmd.OutOrStdout(), done, headline, done.Results)
}

// tell writes an answer as JSON, or a headline and what came of hosts, if any
// were named, and is the verdict.
func (f *freezeFlags) tell(out io.Writer, answer any, headline string, outcomes []client.Outcome) error {
	if f.json {
		if err := writeJSON(out, answer); err != nil {
			return err
		}
		return outcomesVerdict(outcomes)
	}
	if _, err := io.WriteString(out, headline); err != nil {
		return err
	}
	if err := writeOutcomes(out, outcomes); err != nil {
		return err
	}
	return outcomesVerdict(outcomes)
}

func newFreezeLift(f *freezeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lift",
		Short: "End freezes before their time",
		Long: `End freezes before their time, named as they were when they were made: one of a host is not lifted by
naming a namespace there. Where nothing was frozen in that way the code is 829.`,
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
	return f.tell(cmd.OutOrStdout(), done, fmt.Sprintf("%d lifted\n", done.Lifted), done.Results)
}

func newFreezeList(f *freezeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List what is frozen",
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
		_, err := fmt.Fprintln(out, "nothing is frozen")
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
