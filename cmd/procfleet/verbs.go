package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// verb is a command for one action, which selects processes and hosts by its arguments.
type verb struct {
	opFlags
	places placeFlags
}

// newVerbs returns a command for each action.
func newVerbs() []*cobra.Command {
	var all []*cobra.Command
	for _, v := range []struct {
		action procfleet.Action
		short  string
	}{
		{procfleet.ActionStart, "Start processes"},
		{procfleet.ActionStop, "Stop processes"},
		{procfleet.ActionRestart, "Restart processes, or start them"},
		{procfleet.ActionReload, "Make processes read their configuration again"},
		{procfleet.ActionStatus, "Query processes on their hosts"},
		{procfleet.ActionKill, "Kill processes"},
		{procfleet.ActionSupervise, "Keep processes alive"},
		{procfleet.ActionRelease, "End the supervision of processes"},
	} {
		all = append(all, newVerb(v.action, v.short))
	}
	return all
}

func newVerb(action procfleet.Action, short string) *cobra.Command {
	var f verb
	cmd := &cobra.Command{
		Use:   string(action) + " [PROCESS] [HOST...]",
		Short: short,
		Long: short + `, and wait until every host has a result.

PROCESS is a process of the catalog of --biz or of the context's business, by name or pattern, or a registered process as
NAMESPACE/NAME. Without PROCESS the spec of -f is used. HOST is an address as <cloud area>:<ip>; -l selects hosts by labels,
and --module and --set select the hosts of modules. Selections that are given together must all match. Without hosts, a
process of the catalog is selected on the hosts of its modules, and a registered process wherever it is registered.

The command exits with 3 if some host failed` + downText(action) + `.`,
		Example: fmt.Sprintf(`  procfleet %[1]s web --biz 2 --module shop
  procfleet %[1]s shop/web 0:10.0.0.1 0:10.0.0.2
  procfleet %[1]s shop/web -l zone=a1 --dry-run
  procfleet %[1]s -f spec.yaml 0:10.0.0.1`, action),
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeProcesses,
		RunE: func(cmd *cobra.Command, args []string) error {
			operation, err := f.operation(cmd, action, args)
			if err != nil {
				return err
			}
			return f.submit(cmd, operation)
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	f.places.register(flags)
	f.selection.registerPlaces(flags)
	f.submission.register(flags)
	flags.StringVar(&f.hosts.file, "hosts-file", "", "file with one host per line; - for standard input")
	flags.StringVarP(&f.specFile, "file", "f", "", "process spec, YAML or JSON; - for standard input")
	flags.BoolVar(&f.wait, "wait", true, "progress until the task is finished; --wait=false prints only the id")
	return cmd
}

func downText(action procfleet.Action) string {
	if action == procfleet.ActionStatus {
		return ", else with 4 if some process is down"
	}
	return ""
}

// operation returns the operation that the arguments and flags select.
func (f *verb) operation(cmd *cobra.Command, action procfleet.Action, args []string) (o client.Operation, err error) {
	names, hosts, err := splitTargets(args)
	if err != nil {
		return o, err
	}
	if len(names) > 1 {
		return o, command.Usagef("only one PROCESS is possible, not %q; a host is <cloud area>:<ip>", names)
	}
	if err := oneStandardInput(f.specFile, f.hosts.file); err != nil {
		return o, err
	}
	for _, host := range hosts {
		f.hosts.names = append(f.hosts.names, host.String())
	}
	if o.Hosts, err = f.placed(cmd); err != nil {
		return o, err
	}
	o.Action = action
	switch {
	case f.specFile != "" && len(names) > 0:
		return o, command.Usagef("PROCESS and -f exclude each other")
	case f.specFile != "":
		return f.bySpec(cmd, o)
	case len(names) == 0:
		return o, command.Usagef("name a PROCESS, for example shop/web or 'web*' with --biz, or give its spec with -f")
	}
	if namespace, name, found := strings.Cut(names[0], "/"); found {
		return f.byRegistration(o, namespace, name)
	}
	return f.byCatalog(o, names[0])
}

// placed returns the hosts of the arguments, of --hosts-file and with the labels; none if there
// is no such selection.
func (f *verb) placed(cmd *cobra.Command) ([]procfleet.Host, error) {
	hosts, err := f.hosts.any(cmd)
	if err != nil {
		return nil, err
	}
	return f.places.hosts(cmd, &f.serverFlags, hosts)
}

func (f *verb) bySpec(cmd *cobra.Command, o client.Operation) (client.Operation, error) {
	if len(f.selection.sets)+len(f.selection.modules) > 0 {
		return o, command.Usagef("--set and --module require a PROCESS of the catalog, not -f")
	}
	if len(o.Hosts) == 0 {
		return o, command.Usagef("name the hosts: 0:10.0.0.1, --hosts-file FILE or -l key=value")
	}
	var err error
	o.Process, err = readSpec(cmd.InOrStdin(), f.specFile, o.Action)
	return o, err
}

func (f *verb) byRegistration(o client.Operation, namespace, name string) (client.Operation, error) {
	if len(f.selection.sets)+len(f.selection.modules) > 0 {
		return o, command.Usagef("--set and --module require a PROCESS of the catalog; %s/%s is a registered one", namespace, name)
	}
	o.Registered, o.Process.Namespace, o.Process.Name = true, namespace, name
	return o, (&nameFlags{namespace, name}).check()
}

func (f *verb) byCatalog(o client.Operation, name string) (client.Operation, error) {
	if err := f.useContext(); err != nil {
		return o, err
	}
	if f.selection.of.ID == 0 && f.context != nil {
		f.selection.of.ID = f.context.Business
	}
	if f.selection.of.ID == 0 {
		return o, command.Usagef("%q is a process of the catalog of a business: name the business with --biz, or a registered process as NAMESPACE/NAME", name)
	}
	f.selection.name = name
	var err error
	if o.Select, err = f.selection.selection(); err != nil {
		return o, err
	}
	o.Select.Hosts, o.Hosts = o.Hosts, nil
	return o, nil
}
