package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newProcessStatus(f *processFlags) *cobra.Command {
	var business businessFlags
	var query client.DriftQuery
	cmd := &cobra.Command{
		Use:   "status PROCESS",
		Short: "Compare a catalog process with the reports of its hosts",
		Long: `Compare a catalog process, by name or id, with the last reports of the agents of its modules' hosts. No host is queried.

The state of a host is the first of: agent_missing (no live agent), down, unsupervised (running without supervision
although auto_start is set), spec_differs (the registration differs from the catalog), running. The command exits with 3
on drift: a host in another state than running, a module missing in the topology, or a registration on another host.`,
		Example: `  procfleet process status nginx --biz 2
  procfleet process status 44 --biz 2 --module web --json`,
		Args: exactly("PROCESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if query.Limit < 0 {
				return command.Usagef("--limit: %d is less than 0", query.Limit)
			}
			return f.status(cmd, business.of, args[0], query)
		},
	}
	business.require(cmd)
	cmd.Flags().StringSliceVar(&query.Modules, "module", nil, "module whose hosts are compared; repeatable")
	cmd.Flags().IntVar(&query.Limit, "limit", client.LargestPage, "maximum hosts listed, drifted hosts first")
	return cmd
}

func (f *processFlags) status(cmd *cobra.Command, b client.Business, process string, query client.DriftQuery) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	id, err := catalogID(cmd.Context(), c, b, process)
	if err != nil {
		return err
	}
	drift, err := c.Drift(cmd.Context(), b, id, query)
	if err != nil {
		return err
	}
	for _, name := range query.Modules {
		there := func(m client.ModuleDrift) bool { return m.Module == name }
		if !slices.Contains(drift.MissingModules, name) && !slices.ContainsFunc(drift.Modules, there) {
			return fmt.Errorf("process %q is not bound to module %q", drift.Name, name)
		}
	}
	err = f.print(cmd.OutOrStdout(), drift, func(out io.Writer) error { return writeDrift(out, &drift) })
	if err == nil && drift.Drifted() {
		err = errHostsFailed
	}
	return err
}

// catalogID returns the id of the process with the given name. A number that is no name
// counts as an id.
func catalogID(ctx context.Context, c *client.Client, b client.Business, process string) (int64, error) {
	for p, err := range c.Catalog(ctx, b, client.CatalogQuery{Name: process, Exact: true, PageSize: 1}) {
		return p.ID, err
	}
	if id, err := strconv.ParseInt(process, 10, 64); err == nil && id > 0 {
		return id, nil
	}
	return 0, fmt.Errorf("business %d has no process %q: see procfleet process export --biz %d", b.ID, process, b.ID)
}

func writeDrift(out io.Writer, d *client.Drift) error {
	fmt.Fprintf(out, "%s (process %d): %s\n", oneLine(d.Name), d.ID, driftSummary(d))
	if len(d.MissingModules) > 0 {
		fmt.Fprintf(out, "bound to modules missing in the topology: %s\n", oneLine(strings.Join(d.MissingModules, ", ")))
	}
	if len(d.Elsewhere) > 0 {
		fmt.Fprintf(out, "registered on %d hosts outside its modules, the first is %s\n", len(d.Elsewhere), d.Elsewhere[0])
	}
	if len(d.Modules) > 0 {
		if err := writeModuleDrift(out, d.Modules); err != nil {
			return err
		}
	}
	if len(d.Hosts) == 0 {
		return nil
	}
	table := newTable(out)
	fmt.Fprintln(table, "\nHOST\tSTATE\tMODULES\tREPORTED")
	for i := range d.Hosts {
		h := &d.Hosts[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", h.Host, driftText(h), oneLine(strings.Join(h.Modules, ", ")), oneLine(reportedText(h)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := d.Total - len(d.Hosts); more > 0 {
		_, err := fmt.Fprintf(out, "and %d more hosts; --limit lists more\n", more)
		return err
	}
	return nil
}

func driftSummary(d *client.Drift) string {
	if d.Total == 0 {
		return "no hosts: it is bound to no module with hosts"
	}
	parts := []string{fmt.Sprintf("%d of %d hosts running", d.Counts.Running, d.Total)}
	for _, c := range []struct {
		n    int
		what string
	}{
		{d.Counts.AgentMissing, "without an agent"}, {d.Counts.Down, "down"}, {d.Counts.Unsupervised, "unsupervised"}, {d.Counts.SpecDiffers, "with another spec"},
	} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(parts, ", ")
}

func writeModuleDrift(out io.Writer, modules []client.ModuleDrift) error {
	table := newTable(out)
	fmt.Fprintln(table, "\nMODULE\tHOSTS\tRUNNING\tAGENT_MISSING\tDOWN\tUNSUPERVISED\tSPEC_DIFFERS")
	for _, m := range modules {
		c := m.Counts
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", oneLine(m.Set+"/"+m.Module), m.Total, c.Running, c.AgentMissing, c.Down, c.Unsupervised, c.SpecDiffers)
	}
	return table.Flush()
}

// driftText returns the state of a host, followed by its further remarks; the state is
// its first remark.
func driftText(h *client.HostDrift) string {
	states := []string{string(h.State)}
	for _, remark := range h.Remarks[min(1, len(h.Remarks)):] {
		states = append(states, string(remark))
	}
	return strings.Join(states, "+")
}

func reportedText(h *client.HostDrift) string {
	return stateText(&client.Process{Alive: h.State != v1.DriftAgentMissing, Reported: h.Reported})
}
