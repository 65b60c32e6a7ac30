package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// nameFlags identify a registered process.
type nameFlags struct{ namespace, name string }

// register adds the flags; required states in the help when they are required.
func (f *nameFlags) register(flags *pflag.FlagSet, required string) {
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the process ("+required+")")
	flags.StringVar(&f.name, "name", "", "name of the process ("+required+")")
}

func (f *nameFlags) check() error {
	if f.namespace == "" || f.name == "" {
		return command.Usagef("name the process with --namespace and --name")
	}
	return nil
}

// processFlags are the flags common to the process commands.
type processFlags struct{ serverFlags }

func newProcess() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "process",
		Short: "Query processes on hosts and manage the process catalog",
		Example: `  procfleet process list --namespace shop
  procfleet process show --namespace shop --name web --host 0:10.0.0.1
  procfleet process status nginx --biz 2
  procfleet process export --biz 2 > shop.yaml
  procfleet process import --biz 2 -f shop.yaml`,
	}
	var f processFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newProcessList(&f), newProcessShow(&f), newProcessStatus(&f), newProcessExport(&f), newProcessImport(&f), newProcessDelete(&f))
	return cmd
}

func newProcessList(f *processFlags) *cobra.Command {
	var namespace string
	var query client.Query
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List registered and reported processes of a namespace",
		Long: `List registered and reported processes of a namespace, by name and host. The state is the last report of the host's
agent; no host is queried.`,
		Example: `  procfleet process list --namespace shop
  procfleet process list --namespace shop --limit 100 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if namespace == "" {
				return command.Usagef("name the namespace with --namespace")
			}
			if cmd.Flags().Changed("limit") {
				if err := checkLimit(query.PageSize); err != nil {
					return err
				}
			}
			return f.list(cmd, namespace, query)
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of the processes (required)")
	cmd.Flags().IntVar(&query.PageSize, "limit", 0, "maximum processes, 1 to 1000 (default: all)")
	cmd.Flags().StringVar(&query.Cursor, "start", "", "cursor of the next page, from the previous one")
	return cmd
}

// processList is the JSON output of a list, in the format of the API.
type processList struct {
	Processes []client.Process `json:"processes"`
	Next      string           `json:"next"`
}

// list shows one page of a namespace, or all pages if the query has no page size.
func (f *processFlags) list(cmd *cobra.Command, namespace string, query client.Query) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if query.PageSize == 0 {
		all := c.Processes(cmd.Context(), namespace, query)
		if !f.json {
			return writeTables(out, all, writeProcesses)
		}
		processes, err := collect(all)
		if err != nil {
			return err
		}
		return f.writeDocument(out, processList{Processes: processes})
	}
	page, err := c.ProcessPage(cmd.Context(), namespace, query)
	if err != nil {
		return err
	}
	return f.print(out, processList{page.Items, page.Next}, func(out io.Writer) error {
		if err := writeProcesses(out, page.Items); err != nil || page.Next == "" {
			return err
		}
		_, err := fmt.Fprintf(out, "more: procfleet process list --namespace %s --start %s --limit %d%s\n", namespace, page.Next, query.PageSize, f.hint())
		return err
	})
}

func newProcessShow(f *processFlags) *cobra.Command {
	var name nameFlags
	var hosts hostFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the state of one process on hosts",
		Example: `  procfleet process show --namespace shop --name web --host 0:10.0.0.1
  procfleet process show --namespace shop --name web --hosts-file hosts.txt --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := name.check(); err != nil {
				return err
			}
			on, err := hosts.all(cmd)
			if err != nil {
				return err
			}
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			found, err := c.ProcessesOn(cmd.Context(), name.namespace, name.name, client.Targets{Hosts: on})
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), processList{Processes: found}, func(out io.Writer) error { return writeProcesses(out, found) })
		},
	}
	name.register(cmd.Flags(), "required")
	hosts.register(cmd.Flags())
	return cmd
}

func writeProcesses(out io.Writer, processes []client.Process) error {
	if len(processes) == 0 {
		_, err := fmt.Fprintln(out, "no processes; register one with: procfleet registration add")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "HOST\tNAME\tREGISTERED\tSTATE")
	for i := range processes {
		p := &processes[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.Host, oneLine(p.Name), yesOrNo(p.Registration != nil), oneLine(stateText(p)))
	}
	return table.Flush()
}

// stateText describes the last reported state of a process.
func stateText(p *client.Process) string {
	if p.Reported == nil {
		if p.Alive {
			return "unknown to the agent"
		}
		return "no agent"
	}
	text := statusText(&p.Reported.Status)
	if p.Reported.Desired == "down" {
		text += ", stopped on purpose"
	}
	if !p.Alive {
		text += ", as of " + p.Reported.ReportedAt.Format(time.RFC3339) + "; no agent since"
	}
	return text
}
