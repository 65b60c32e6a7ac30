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

// registrationFlags are the flags common to the registration commands.
type registrationFlags struct {
	serverFlags
	hosts hostFlags
	plan  bool
}

func newRegistration() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registration",
		Short: "Manage process registrations for operations with --registered",
		Example: `  procfleet registration add -f spec.yaml --host 0:10.0.0.1
  procfleet registration remove --namespace shop --name web --host 0:10.0.0.1
  procfleet registration prune --namespace shop --plan`,
	}
	var f registrationFlags
	f.register(cmd.PersistentFlags())
	f.hosts.register(cmd.PersistentFlags())
	cmd.AddCommand(newRegistrationAdd(&f), newRegistrationRemove(&f), newRegistrationPrune(&f))
	return cmd
}

func newRegistrationAdd(f *registrationFlags) *cobra.Command {
	var specFile string
	var keep bool
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Register a process on hosts, or replace its registration",
		Long: `Register a process on hosts, or replace its registration, without starting or supervising it. The spec file is the
one of op, with namespace and name. The command exits with 3 if some host failed.`,
		Example: `  procfleet registration add -f spec.yaml --host 0:10.0.0.1 --host 0:10.0.0.2
  procfleet registration add -f spec.yaml --hosts-file hosts.txt --keep`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneStandardInput(specFile, f.hosts.file); err != nil {
				return err
			}
			spec, err := readSpec(cmd.InOrStdin(), specFile, procfleet.ActionStatus) // unlike start, status requires no start command in the spec
			if err != nil {
				return err
			}
			if err := spec.ValidateIdentity(); err != nil {
				return command.Usagef("-f %s: %w", specFile, err)
			}
			return f.run(cmd, spec.Namespace, spec.Name, func(c *client.Client, on client.Targets) ([]client.Outcome, error) {
				if keep {
					return c.RegisterNew(cmd.Context(), spec, on)
				}
				return c.Register(cmd.Context(), spec, on)
			})
		},
	}
	cmd.Flags().StringVarP(&specFile, "file", "f", "", "process spec, YAML or JSON; - for standard input (required)")
	cmd.Flags().BoolVar(&keep, "keep", false, "existing registrations unchanged")
	planFlags(cmd.Flags(), &f.plan, "show the present registrations, without changes")
	return cmd
}

func newRegistrationRemove(f *registrationFlags) *cobra.Command {
	var name nameFlags
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove the registration of a process from hosts",
		Long: `Remove the registration of a process from hosts and end its supervision. The process keeps running. The command exits
with 3 if some host failed.`,
		Example: "  procfleet registration remove --namespace shop --name web --host 0:10.0.0.1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := name.check(); err != nil {
				return err
			}
			return f.run(cmd, name.namespace, name.name, func(c *client.Client, on client.Targets) ([]client.Outcome, error) {
				return c.Unregister(cmd.Context(), name.namespace, name.name, on)
			})
		},
	}
	name.register(cmd.Flags(), "required")
	planFlags(cmd.Flags(), &f.plan, "show the present registrations, without changes")
	return cmd
}

// run calls the API for the hosts and shows the outcome of each host. With --plan it shows
// on which hosts the process is registered.
func (f *registrationFlags) run(cmd *cobra.Command, namespace, name string, call func(*client.Client, client.Targets) ([]client.Outcome, error)) error {
	hosts, err := f.hosts.all(cmd)
	if err != nil {
		return err
	}
	c, err := f.submitter(cmd)
	if err != nil {
		return err
	}
	if f.plan {
		found, err := c.ProcessesOn(cmd.Context(), namespace, name, client.Targets{Hosts: hosts})
		if err != nil {
			return err
		}
		return f.printRegistered(cmd.OutOrStdout(), found)
	}
	outcomes, err := call(c, client.Targets{Hosts: hosts})
	if err != nil {
		return err
	}
	return f.printOutcomes(cmd.OutOrStdout(), map[string][]client.Outcome{"results": outcomes}, "", outcomes)
}

// printRegistered writes the hosts of processes, and whether these are registered there.
func (f *registrationFlags) printRegistered(out io.Writer, found []client.Process) error {
	return f.print(out, map[string][]client.Process{"processes": found}, func(out io.Writer) error {
		table := newTable(out)
		for i := range found {
			p, state := &found[i], "not registered"
			if p.Registration != nil {
				state = "registered since " + p.Registration.RegisteredAt.Local().Format(time.DateTime)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", p.Host, oneLine(p.Namespace+"/"+p.Name), state)
		}
		return table.Flush()
	})
}

// printOutcomes writes the response as JSON, or the headline and the outcome of each host.
// It returns errHostsFailed if a host failed.
func (s *serverFlags) printOutcomes(out io.Writer, response any, headline string, outcomes []client.Outcome) error {
	err := s.print(out, response, func(out io.Writer) error {
		table := newTable(out)
		fmt.Fprint(table, headline)
		for _, o := range outcomes {
			fmt.Fprintf(table, "%s\t%d\t%s\n", o.Host, o.Code, oneLine(o.Message))
		}
		return table.Flush()
	})
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		switch o.Code {
		case procfleet.CodeSuccess, procfleet.CodeRegistered, procfleet.CodeNotRunning: // the latter two: the host was already in the requested state
		default:
			return errHostsFailed
		}
	}
	return nil
}
