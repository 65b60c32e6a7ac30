package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/label"
)

// pageFlags select a page of a list.
type pageFlags struct{ page client.Query }

func (f *pageFlags) register(flags *pflag.FlagSet) {
	flags.IntVar(&f.page.PageSize, "limit", 100, "maximum number, 1 to 1000; 0 for all")
	flags.StringVar(&f.page.Cursor, "cursor", "", "cursor of the next page, from the previous one")
}

func (f *pageFlags) check() error {
	if f.page.PageSize == 0 {
		return nil
	}
	return checkLimit(f.page.PageSize)
}

// collectPages returns the items of one page, or of all pages with --limit 0. Pages of filtered
// lists may be short, so collect reads on until the page is full.
func collectPages[T any](q client.Query, read func(client.Query) (client.Page[T], error)) (items []T, next string, err error) {
	want := q.PageSize
	for {
		page, err := read(q)
		if err != nil {
			return items, next, err
		}
		items, next = append(items, page.Items...), page.Next
		if next == "" || want > 0 && len(items) >= want {
			return items, next, nil
		}
		q.Cursor = next
		if want > 0 {
			q.PageSize = want - len(items)
		}
	}
}

// more returns the footer of a list that continues.
func (s *serverFlags) more(cmd *cobra.Command, next string) string {
	if next == "" {
		return ""
	}
	return fmt.Sprintf("more: %s --cursor %s%s, with the same flags", cmd.CommandPath(), next, s.hint())
}

// placeFlags filter hosts.
type placeFlags struct {
	areas    []int64
	labels   []string
	conflict bool
}

func (f *placeFlags) register(flags *pflag.FlagSet) {
	flags.Int64SliceVar(&f.areas, "area", nil, "cloud area; repeatable")
	flags.StringArrayVarP(&f.labels, "selector", "l", nil, "label or fact of hosts: key=pattern, key!=pattern or key; repeatable")
	flags.BoolVar(&f.conflict, "conflict", false, "only hosts that two agents claim")
}

func (f *placeFlags) query() (q client.HostQuery, err error) {
	for _, area := range f.areas {
		q.Areas = append(q.Areas, procfleet.CloudArea(area))
	}
	for _, texts := range f.labels {
		for text := range strings.SplitSeq(texts, ",") {
			if _, err := label.ParseFilter(text); err != nil {
				return q, command.Usagef("-l: %w", err)
			}
			q.Labels = append(q.Labels, text)
		}
	}
	q.Conflict = f.conflict
	return q, nil
}

// hosts returns those of the named hosts that match the filters, or without names all hosts that
// match; without filters the named hosts.
func (f *placeFlags) hosts(cmd *cobra.Command, s *serverFlags, named []procfleet.Host) ([]procfleet.Host, error) {
	query, err := f.query()
	if err != nil {
		return nil, err
	}
	if len(query.Labels) == 0 && len(query.Areas) == 0 && !query.Conflict {
		return named, nil
	}
	c, err := s.client(cmd)
	if err != nil {
		return nil, err
	}
	asked := make(map[procfleet.Host]bool, len(named))
	for _, host := range named {
		asked[host] = true
	}
	var found []procfleet.Host
	for agent, err := range c.Hosts(cmd.Context(), query) {
		if err != nil {
			return nil, err
		}
		if len(named) == 0 || asked[agent.Host] {
			found = append(found, agent.Host)
		}
	}
	if len(found) == 0 {
		return nil, command.Usagef("no host with a live agent matches -l, --area and the given hosts")
	}
	return found, nil
}

// hostsFlags are the flags of `hosts`.
type hostsFlags struct {
	serverFlags
	pageFlags
	places  placeFlags
	repeat  repeatFlags
	biz     int64
	modules []string
	missing bool
}

func newHosts() *cobra.Command {
	var f hostsFlags
	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "List the hosts with a live agent, with their processes",
		Long: `List the hosts with a live agent, by cloud area and address. UP and DOWN are the numbers of processes in the agent's last
report. The labels include the facts os, arch, kernel and version. With --biz the hosts of its topology, also those without a live
agent; their numbers and SINCE are of the last report.`,
		Example: `  procfleet hosts -l zone=a1
  procfleet hosts --biz 2 --missing
  procfleet hosts --conflict --watch
  procfleet hosts -o name -l os=linux --limit 0 > hosts.txt`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.repeat.run(cmd, f.show(cmd)) },
	}
	flags := cmd.Flags()
	f.serverFlags.register(flags)
	f.pageFlags.register(flags)
	f.places.register(flags)
	f.repeat.register(flags)
	flags.Int64Var(&f.biz, "biz", 0, "hosts in the topology of this business")
	flags.StringArrayVar(&f.modules, "module", nil, "only hosts of this module of --biz; repeatable")
	flags.BoolVar(&f.missing, "missing", false, "only hosts of --biz without a live agent")
	return cmd
}

func (f *hostsFlags) query() (q client.HostQuery, err error) {
	if q, err = f.places.query(); err != nil {
		return q, err
	}
	if f.biz != 0 {
		q.Business = strconv.FormatInt(f.biz, 10)
	} else if len(f.modules) > 0 || f.missing {
		return q, command.Usagef("--module and --missing require --biz")
	}
	q.Modules, q.Missing, q.Processes = f.modules, f.missing, true
	return q, f.check()
}

func (f *hostsFlags) show(cmd *cobra.Command) func(context.Context, io.Writer) error {
	return func(ctx context.Context, out io.Writer) error {
		query, err := f.query()
		if err != nil {
			return err
		}
		c, err := f.client(cmd)
		if err != nil {
			return err
		}
		business := query.Business
		hosts, next, err := collectPages(f.page, func(page client.Query) (client.Page[client.Agent], error) {
			query.Query = page
			query.Business = business
			return c.HostPage(ctx, query)
		})
		if err != nil {
			return err
		}
		return f.printTable(out, v1.HostPage{Hosts: hosts, Next: next}, hostTable(hosts, f.more(cmd, next)))
	}
}

func hostTable(hosts []client.Agent, footer string) *table {
	t := &table{
		header: []string{"HOST", "AGENT ID", "STATE", "SINCE", "VERSION", "UP", "DOWN", "LABELS", "SEEN", "CPU %", "MEMORY %", "INSTANCE"}, wide: 4,
		empty: "no hosts", footer: footer,
	}
	for i := range hosts {
		h := &hosts[i]
		state, since, up, down := "alive", h.AliveSince, "", ""
		switch {
		case h.Missing:
			state, since = "no agent", h.SeenAt
		case h.Conflict:
			state = "conflict"
		case h.FrozenUntil != nil:
			state = "frozen, until " + h.FrozenUntil.Local().Format(time.DateTime)
		}
		if h.Processes != nil {
			up, down = strconv.Itoa(h.Processes.Up), strconv.Itoa(h.Processes.Down)
		}
		t.add(h.Host.String(), h.Host.String(), h.AgentID, state, ageText(since), h.Version, up, down, labelsText(h.Labels),
			ageText(h.SeenAt), fmt.Sprintf("%.0f", h.CPU), fmt.Sprintf("%.0f", h.Memory), h.Instance)
	}
	return t
}

// labelsText lists labels by key, without the facts.
func labelsText(labels map[string]string) string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains(label.Facts(), key) {
			texts = append(texts, key+"="+labels[key])
		}
	}
	return strings.Join(texts, ",")
}

// ageText returns the time since at, "" for the zero time.
func ageText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	const day = 24 * time.Hour
	switch age := max(time.Since(at), 0); {
	case age < time.Minute:
		return age.Round(time.Second).String()
	case age < time.Hour:
		return fmt.Sprintf("%dm", age/time.Minute)
	case age < 2*day:
		return fmt.Sprintf("%dh", age/time.Hour)
	default:
		return fmt.Sprintf("%dd", age/day)
	}
}

// psFlags are the flags of `ps`.
type psFlags struct {
	serverFlags
	pageFlags
	places    placeFlags
	repeat    repeatFlags
	namespace string
	state     string
	restarted bool
	drifted   bool
	biz       int64
	modules   []string
}

func newPS() *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps [NAME] [HOST...]",
		Short: "List the processes of all hosts",
		Long: `List the processes of the hosts with a live agent, by host, as in the agents' last reports; no host is queried. NAME is a
name or pattern, and HOST an address as <cloud area>:<ip>. DRIFT is what differs from the registration: down, unsupervised,
spec differs, or unregistered.`,
		Example: `  procfleet ps --state down
  procfleet ps 'web*' -l zone=a1 --restarted -o wide
  procfleet ps --biz 2 --module web --watch`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := f.query(args)
			if err != nil {
				return err
			}
			return f.repeat.run(cmd, f.show(cmd, query))
		},
		ValidArgsFunction: completeProcesses,
	}
	flags := cmd.Flags()
	f.serverFlags.register(flags)
	f.pageFlags.register(flags)
	f.places.register(flags)
	f.repeat.register(flags)
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the processes")
	flags.StringVar(&f.state, "state", "", "up, down, or a state such as backoff or fatal")
	flags.BoolVar(&f.drifted, "drifted", false, "only processes that differ from their registrations")
	flags.BoolVar(&f.restarted, "restarted", false, "only processes that agents have restarted")
	flags.Int64Var(&f.biz, "biz", 0, "only hosts in the topology of this business")
	flags.StringArrayVar(&f.modules, "module", nil, "only hosts of this module of --biz; repeatable")
	return cmd
}

func (f *psFlags) query(args []string) (q client.FleetQuery, err error) {
	names, hosts, err := splitTargets(args)
	if err != nil {
		return q, err
	}
	if len(names) > 1 {
		return q, command.Usagef("only one NAME is possible, not %q", names)
	}
	if err := f.check(); err != nil {
		return q, err
	}
	if q.HostQuery, err = f.places.query(); err != nil {
		return q, err
	}
	if len(f.modules) > 0 && f.biz == 0 {
		return q, command.Usagef("--module requires --biz")
	}
	if f.biz != 0 {
		q.Business = strconv.FormatInt(f.biz, 10)
	}
	if len(names) == 1 {
		q.Name = names[0]
		if namespace, name, found := strings.Cut(q.Name, "/"); found {
			f.namespace, q.Name = namespace, name
		}
	}
	q.Drift = true
	q.Hosts, q.Modules, q.State, q.Namespace, q.Restarted, q.Drifted = hosts, f.modules, f.state, f.namespace, f.restarted, f.drifted
	return q, nil
}

func (f *psFlags) show(cmd *cobra.Command, query client.FleetQuery) func(context.Context, io.Writer) error {
	return func(ctx context.Context, out io.Writer) error {
		c, err := f.client(cmd)
		if err != nil {
			return err
		}
		business := query.Business
		found, next, err := collectPages(f.page, func(page client.Query) (client.Page[client.FleetProcess], error) {
			query.Query = page
			query.Business = business
			return c.FleetPage(ctx, query)
		})
		if err != nil {
			return err
		}
		return f.printTable(out, v1.FleetProcessPage{Processes: found, Next: next}, fleetTable(found, f.more(cmd, next)))
	}
}

func fleetTable(found []client.FleetProcess, footer string) *table {
	t := &table{
		header: []string{"HOST", "NAMESPACE", "NAME", "STATE", "PID", "SINCE", "RESTARTS", "DRIFT", "CPU %", "MEMORY", "DESIRED", "PROGRAM", "VERSION", "LABELS"}, wide: 4,
		empty: "no processes", footer: footer,
	}
	for i := range found {
		p := &found[i]
		s := &p.Status
		state, pid, since, memory := "down", "", "", ""
		if s.Running {
			state, pid, since, memory = "up", strconv.Itoa(s.PID), ageText(s.StartedAt), fmt.Sprintf("%d MiB", s.MemoryBytes>>20)
		}
		if word := cmp.Or(s.Phase, "stopped"); word != "running" && word != "stopped" {
			state += ", " + word
		}
		t.add(p.Host.String()+" "+p.Key, p.Host.String(), p.Namespace, cmp.Or(p.Name, p.Key), state, pid, since, strconv.Itoa(s.Restarts),
			differencesText(p.Drift), fmt.Sprintf("%.1f", s.CPU), memory, p.Desired, p.ProcName, s.Version, labelsText(p.Labels))
	}
	return t
}

// differencesText returns the differences of a process from its registration in words.
func differencesText(drift []v1.DriftState) string {
	words := make([]string, len(drift))
	for i, state := range drift {
		words[i] = strings.ReplaceAll(string(state), "_", " ")
	}
	return strings.Join(words, ", ")
}

// splitTargets splits arguments into hosts, which contain an address, and names.
func splitTargets(args []string) (names []string, hosts []procfleet.Host, err error) {
	for _, arg := range args {
		area, _, found := strings.Cut(arg, ":")
		if _, bad := strconv.ParseInt(area, 10, 64); !found || bad != nil {
			names = append(names, arg)
			continue
		}
		host, err := procfleet.ParseHost(arg)
		if err != nil {
			return nil, nil, command.Usagef("%w", err)
		}
		hosts = append(hosts, host)
	}
	return names, hosts, nil
}
