package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// topologyFlags are the flags common to the topology commands.
type topologyFlags struct {
	serverFlags
	business businessFlags
	format   string // file format: json, yaml or csv
}

func newTopology() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "topology",
		Short:   "Manage the sets, modules and hosts of a business",
		Example: "  procfleet topology apply --biz 2 -f topology.yaml\n  procfleet topology show --biz 2",
	}
	var f topologyFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newTopologyApply(&f), newTopologyShow(&f))
	f.business.require(cmd.Commands()...)
	return cmd
}

// topologyTypes maps file formats to content types.
var topologyTypes = map[string]string{"json": "application/json", "yaml": "application/yaml", "csv": "text/csv"}

// checkFormat validates --format, which is optional.
func (f *topologyFlags) checkFormat() error {
	if f.format != "" && topologyTypes[f.format] == "" {
		return command.Usagef("--format: %q is not json, yaml or csv", f.format)
	}
	return nil
}

// formatOf returns --format, or else the format that the file's extension implies.
func (f *topologyFlags) formatOf(path string) (string, error) {
	if f.format != "" {
		return f.format, nil
	}
	format := strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")
	if format == "yml" {
		format = "yaml"
	}
	if topologyTypes[format] == "" {
		return "", command.Usagef("-f %s: the name does not end in .json, .yaml or .csv; give --format", path)
	}
	return format, nil
}

func newTopologyApply(f *topologyFlags) *cobra.Command {
	var file string
	var version int64
	var autoRegister, plan bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Replace the topology of a business with a file",
		Long: `Replace the topology of a business with a file, atomically, and show the changes.

The file is JSON or YAML with sets, modules and hosts, or CSV with one line per host below the header
"set,module,host" or "set,module,host,default".`,
		Example: `  procfleet topology apply --biz 2 -f topology.yaml
  procfleet topology apply --biz 2 -f topology.yaml --plan
  procfleet topology apply --biz 2 -f - --format csv < hosts.csv
  procfleet topology apply --biz 2 -f topology.yaml --replaces 4
  procfleet topology apply --biz 2 --auto-register`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := client.TopologyText{}
			if cmd.Flags().Changed("replaces") {
				t.Version = &version
			}
			if cmd.Flags().Changed("auto-register") {
				t.AutoRegister = &autoRegister
			}
			return f.apply(cmd, file, t, plan)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "topology file; - for standard input")
	cmd.Flags().StringVar(&f.format, "format", "", "file format: json, yaml or csv (default: by file name)")
	cmd.Flags().Int64Var(&version, "replaces", 0, "expected current version; 0 for none (default: any)")
	cmd.Flags().BoolVar(&autoRegister, "auto-register", false, "registration of processes on hosts of bound modules (default: unchanged)")
	planFlags(cmd.Flags(), &plan, "preview without changes")
	return cmd
}

// apply replaces the topology with the content of a file. If file is empty, it only
// sets auto-register. With plan it only shows the changes.
func (f *topologyFlags) apply(cmd *cobra.Command, file string, t client.TopologyText, plan bool) error {
	if err := f.checkFormat(); err != nil {
		return err
	}
	switch {
	case file == "" && t.AutoRegister == nil:
		return command.Usagef("-f is required: name the topology file")
	case file == "" && plan:
		return command.Usagef("--plan requires -f: name the topology file")
	case file == "" && t.Version != nil:
		return command.Usagef("--replaces requires -f: --auto-register alone applies to any version")
	case file != "":
		format, err := f.formatOf(file)
		if err != nil {
			return err
		}
		if t.Text, err = readInput(cmd.InOrStdin(), file); err != nil {
			return command.Usagef("-f: %w", err)
		}
		t.Type = topologyTypes[format]
	}
	c, err := f.submitter(cmd)
	if err != nil {
		return err
	}
	before, err := c.BareTopology(cmd.Context(), f.business.of)
	if err != nil {
		return err
	}
	var after client.Topology
	if plan {
		after, err = c.PlanTopology(cmd.Context(), f.business.of, t)
	} else {
		after, err = f.change(cmd.Context(), c, file, t)
	}
	if err != nil {
		return err
	}
	changes := compareTopologies(&before, &after)
	return f.print(cmd.OutOrStdout(), changes, func(out io.Writer) error { return writeTopologyChanges(out, &changes) })
}

// change stores the topology, or sets auto-register if file is empty, and returns what is
// stored then.
func (f *topologyFlags) change(ctx context.Context, c *client.Client, file string, t client.TopologyText) (after client.Topology, err error) {
	if file == "" {
		_, err = c.SetAutoRegister(ctx, f.business.of, *t.AutoRegister)
	} else {
		_, err = c.ReplaceTopology(ctx, f.business.of, t)
	}
	if err != nil {
		return after, err
	}
	if after, err = c.BareTopology(ctx, f.business.of); err != nil {
		return after, fmt.Errorf("the topology is applied, but reading the changes failed: %w", err)
	}
	return after, nil
}

func newTopologyShow(f *topologyFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the topology of a business and missing agents",
		Long: `Show the sets, modules and hosts of a business, hosts of modules without a live agent, and hosts with an agent outside
all modules. With --format the output is a file for procfleet topology apply.`,
		Example: `  procfleet topology show --biz 2
  procfleet topology show --biz 2 --format yaml > topology.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.show(cmd) },
	}
	cmd.Flags().StringVar(&f.format, "format", "", "output as a topology file: json, yaml or csv")
	return cmd
}

func (f *topologyFlags) show(cmd *cobra.Command) error {
	if err := f.checkFormat(); err != nil {
		return err
	}
	if f.format != "" && f.json {
		return command.Usagef("--json and --format exclude each other")
	}
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	read := c.Topology
	if f.format != "" {
		read = c.BareTopology
	}
	t, err := read(cmd.Context(), f.business.of)
	switch {
	case err != nil:
		return err
	case f.format != "":
		return writeTopologyFile(cmd.OutOrStdout(), &t, f.format)
	}
	return f.print(cmd.OutOrStdout(), t, func(out io.Writer) error { return writeTopology(out, &t) })
}

// topologyChanges lists the differences between two versions of a topology, in module
// order.
type topologyChanges struct {
	Version      int64          `json:"version"`
	Was          int64          `json:"was"` // replaced version; 0: none existed
	AutoRegister bool           `json:"auto_register"`
	Modules      []moduleChange `json:"modules"` // modules that differ
}

// moduleChange describes the difference of one module.
type moduleChange struct {
	Set     string   `json:"set"`
	Module  string   `json:"module"`
	What    string   `json:"what"` // added, removed or changed
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
}

// compareTopologies returns modules that were added, removed or have different hosts.
func compareTopologies(before, after *client.Topology) topologyChanges {
	c := topologyChanges{Version: after.Version, Was: before.Version, AutoRegister: after.AutoRegister, Modules: []moduleChange{}}
	was, is := modulesOf(before), modulesOf(after)
	for _, name := range is.order {
		old, there := was.hosts[name]
		change := moduleChange{Set: name[0], Module: name[1], What: "changed", Added: without(is.hosts[name], old), Removed: without(old, is.hosts[name])}
		if !there {
			change.What = "added"
		}
		if !there || len(change.Added)+len(change.Removed) > 0 {
			c.Modules = append(c.Modules, change)
		}
	}
	for _, name := range was.order {
		if _, there := is.hosts[name]; !there {
			c.Modules = append(c.Modules, moduleChange{Set: name[0], Module: name[1], What: "removed", Added: []string{}, Removed: without(was.hosts[name], nil)})
		}
	}
	return c
}

// modulesByName maps names of sets and modules to hosts.
type modulesByName struct {
	order [][2]string
	hosts map[[2]string][]string
}

func modulesOf(t *client.Topology) modulesByName {
	m := modulesByName{hosts: make(map[[2]string][]string)}
	for _, set := range t.Sets {
		for _, module := range set.Modules {
			name := [2]string{set.Name, module.Name}
			m.order = append(m.order, name)
			hosts := make([]string, len(module.Hosts))
			for i, host := range module.Hosts {
				hosts[i] = host.String()
			}
			for _, filter := range module.Labels {
				hosts = append(hosts, "hosts with label "+filter)
			}
			m.hosts[name] = hosts
		}
	}
	return m
}

// without returns the hosts that are not in others.
func without(hosts, others []string) []string {
	not := make(map[string]bool, len(others))
	for _, host := range others {
		not[host] = true
	}
	left := slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return not[host] })
	return append([]string{}, left...) // not nil, which JSON would encode as null
}

// shownHosts is the maximum number of hosts in a line of text.
const shownHosts = 5

func someHosts(hosts []string) string {
	if len(hosts) <= shownHosts {
		return strings.Join(hosts, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(hosts[:shownHosts], " "), len(hosts)-shownHosts)
}

func writeTopologyChanges(out io.Writer, c *topologyChanges) error {
	state := "binding does not register"
	if c.AutoRegister {
		state = "binding registers"
	}
	if _, err := fmt.Fprintf(out, "version %d, was %d; %s\n", c.Version, c.Was, state); err != nil {
		return err
	}
	if len(c.Modules) == 0 {
		_, err := fmt.Fprintln(out, "no changes of hosts")
		return err
	}
	for i := range c.Modules {
		m := &c.Modules[i]
		line := fmt.Sprintf("%s/%s %s", oneLine(m.Set), oneLine(m.Module), m.What)
		if n := len(m.Added); n > 0 {
			line += fmt.Sprintf(", +%d: %s", n, someHosts(m.Added))
		}
		if n := len(m.Removed); n > 0 {
			line += fmt.Sprintf(", -%d: %s", n, someHosts(m.Removed))
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
