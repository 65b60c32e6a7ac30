package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// writeTopologyFile writes a topology for `topology apply`. It omits the version, so that
// the file can replace any version.
func writeTopologyFile(out io.Writer, t *client.Topology, format string) error {
	file := struct {
		AutoRegister bool                 `json:"auto_register"`
		Sets         []client.TopologySet `json:"sets"`
	}{t.AutoRegister, t.Sets}
	switch format {
	case "csv":
		return writeTopologyCSV(out, t)
	case "yaml":
		text, err := yaml.Marshal(file)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	return writeJSON(out, file)
}

// writeTopologyCSV writes a line per host, and one per module or set without hosts.
func writeTopologyCSV(out io.Writer, t *client.Topology) error {
	lines := csv.NewWriter(out)
	_ = lines.Write([]string{"set", "module", "host", "default"}) // errors are sticky, see Error
	for _, set := range t.Sets {
		if len(set.Modules) == 0 {
			_ = lines.Write([]string{set.Name, "", "", ""})
		}
		for _, module := range set.Modules {
			if len(module.Labels) > 0 {
				return command.Usagef("--format csv: module %s/%s has labels, for which CSV has no column: use json or yaml", set.Name, module.Name)
			}
			left := strconv.FormatInt(module.Default, 10)
			if len(module.Hosts) == 0 {
				_ = lines.Write([]string{set.Name, module.Name, "", left})
			}
			for _, host := range module.Hosts {
				_ = lines.Write([]string{set.Name, module.Name, host.String(), left})
			}
		}
	}
	lines.Flush()
	return lines.Error()
}

func writeTopology(out io.Writer, t *client.Topology) error {
	if t.Version == 0 {
		fmt.Fprintln(out, "the business has no topology; make one with: procfleet topology apply")
	} else if err := writeModules(out, t); err != nil {
		return err
	}
	if t.WithoutModule == nil {
		return nil
	}
	fmt.Fprintf(out, "%d hosts with an agent are in no module%s\n", len(t.WithoutModule), named(t.WithoutModule))
	return nil
}

func writeModules(out io.Writer, t *client.Topology) error {
	missing := make(map[procfleet.Host]bool, len(t.WithoutAgent))
	for _, host := range t.WithoutAgent {
		missing[host] = true
	}
	fmt.Fprintf(out, "version %d\n", t.Version)
	table := newTable(out)
	fmt.Fprintln(table, "SET\tMODULE\tDEFAULT\tHOST\tAGENT")
	labeled := make(map[[2]string][]procfleet.Host, len(t.Labeled))
	for _, m := range t.Labeled {
		labeled[[2]string{m.Set, m.Module}] = m.Hosts
	}
	for _, set := range t.Sets {
		if len(set.Modules) == 0 {
			fmt.Fprintf(table, "%s\t-\t-\t-\t-\n", oneLine(set.Name))
		}
		for _, module := range set.Modules {
			begin := fmt.Sprintf("%s\t%s\t%d", oneLine(set.Name), oneLine(module.Name), module.Default)
			byLabel := slices.DeleteFunc(labeled[[2]string{set.Name, module.Name}], func(h procfleet.Host) bool { return slices.Contains(module.Hosts, h) })
			if len(module.Hosts)+len(byLabel) == 0 {
				fmt.Fprintf(table, "%s\t-\t-\n", begin)
			}
			for _, host := range byLabel {
				fmt.Fprintf(table, "%s\t%s\tyes, by label\n", begin, host)
			}
			for _, host := range module.Hosts {
				agent := "yes"
				if missing[host] {
					agent = "none"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\n", begin, host, agent)
			}
		}
	}
	return table.Flush()
}

// named returns a colon and the names of the hosts, or "" for no hosts.
func named(hosts []procfleet.Host) string {
	if len(hosts) == 0 {
		return ""
	}
	texts := make([]string, len(hosts))
	for i, host := range hosts {
		texts[i] = host.String()
	}
	return ": " + someHosts(texts)
}
