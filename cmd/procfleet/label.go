package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/label"
)

// labelFlags are the flags of `label`.
type labelFlags struct {
	serverFlags
	places   placeFlags
	business string
}

func newLabel() *cobra.Command {
	var f labelFlags
	cmd := &cobra.Command{
		Use:   "label HOST... KEY=VALUE... [KEY-...]",
		Short: "Set and remove labels of hosts",
		Long: `Set labels of hosts on the server, or remove them with KEY-. They are added to the labels that agents announce, and replace
those of the same keys. HOST is an address as <cloud area>:<ip>, with or without an agent; -l selects hosts with a live agent.
The command exits with 3 if some host failed.`,
		Example: `  procfleet label 0:10.0.0.1 0:10.0.0.2 zone=a1 rack=7
  procfleet label -l zone=a1 canary-`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd.Flags())
	f.places.register(cmd.Flags())
	cmd.Flags().StringVar(&f.business, "biz", "", "business that owns the hosts")
	return cmd
}

func (f *labelFlags) run(cmd *cobra.Command, args []string) error {
	rest, set, remove, err := splitLabels(args)
	if err != nil {
		return err
	}
	names, hosts, err := splitTargets(rest)
	switch {
	case err != nil:
		return err
	case len(names) > 0:
		return command.Usagef("%.70q is no host, no KEY=VALUE and no KEY-", names[0])
	case len(set)+len(remove) == 0:
		return command.Usagef("name the labels: KEY=VALUE to set one, KEY- to remove one")
	}
	if hosts, err = f.places.hosts(cmd, &f.serverFlags, hosts); err != nil {
		return err
	}
	if len(hosts) == 0 {
		return command.Usagef("name the hosts: 0:10.0.0.1 or -l key=value")
	}
	c, err := f.submitter(cmd)
	if err != nil {
		return err
	}
	outcomes, err := c.LabelHosts(cmd.Context(), set, remove, client.Targets{Hosts: hosts, Business: f.business})
	if err != nil {
		return err
	}
	return f.printOutcomes(cmd.OutOrStdout(), map[string][]client.Outcome{"results": outcomes}, "", outcomes)
}

// splitLabels splits arguments into KEY=VALUE, KEY- and others.
func splitLabels(args []string) (rest []string, set map[string]string, remove []string, err error) {
	set = map[string]string{}
	for _, arg := range args {
		if key, removes := strings.CutSuffix(arg, "-"); removes {
			remove = append(remove, key)
		} else if !strings.Contains(arg, "=") {
			rest = append(rest, arg)
		} else if key, value, err := label.Parse(arg); err != nil {
			return nil, nil, nil, command.Usagef("%w", err)
		} else {
			set[key] = value
		}
	}
	return rest, set, remove, nil
}
