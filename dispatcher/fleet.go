package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	// scanHosts is the number of hosts read at once to find those that a filter selects,
	// and maxScans the maximum number of such reads for one page.
	scanHosts = 500
	maxScans  = 20
)

// listHosts returns a page of the hosts with a live agent, or of the hosts of a business. If
// a filter excludes most hosts, a page may be short or empty although another page follows.
func (e *exchange) listHosts(ctx context.Context, page *dialect.HostPage, _ string) (dialect.Hosts, error) {
	found := dialect.Hosts{Agents: []v1.Agent{}}
	scan := hostScan{store: e.api.store, after: page.After, batch: min(page.Limit+1, scanHosts)}
	if page.Business != "" {
		var err error
		if scan.among, err = e.hostsAmong(ctx, page.Business, page.Modules, nil); err != nil {
			return found, err
		}
		scan.missing = true
	}
	for range maxScans {
		batch, err := scan.next(ctx)
		if err != nil {
			return found, err
		}
		for i := range batch {
			agent := agentOf(&batch[i])
			if !page.Matches(agent.Host, agent.Labels, agent.Conflict) || page.Missing && !agent.Missing {
				continue
			}
			if len(found.Agents) == page.Limit {
				found.Next = found.Agents[page.Limit-1].Host
				return found, e.countProcesses(ctx, page, found.Agents)
			}
			found.Agents = append(found.Agents, agent)
		}
		if scan.over {
			return found, e.countProcesses(ctx, page, found.Agents)
		}
		scan.batch = scanHosts
	}
	found.Next = scan.after
	return found, e.countProcesses(ctx, page, found.Agents)
}

// countProcesses adds the numbers of processes and the freezes of the hosts, if the page
// requests them.
func (e *exchange) countProcesses(ctx context.Context, page *dialect.HostPage, agents []v1.Agent) error {
	if !page.Processes {
		return nil
	}
	for part := range slices.Chunk(agents, scanHosts) {
		hosts := make([]procfleet.Host, len(part))
		for i := range part {
			hosts[i] = part[i].Host
		}
		reports, err := e.api.store.Reported(ctx, hosts)
		if err != nil {
			return fmt.Errorf("read the reports of %d hosts: %w", len(hosts), err)
		}
		freezes, err := e.api.store.FreezesOf(ctx, hosts)
		if err != nil {
			return fmt.Errorf("read the freezes of %d hosts: %w", len(hosts), err)
		}
		for i := range part {
			addState(&part[i], &reports[i], freezes[i])
		}
	}
	return nil
}

func addState(agent *v1.Agent, report *catalog.Report, freezes []catalog.Freeze) {
	agent.Processes = &v1.ProcessCounts{}
	if agent.Missing {
		agent.SeenAt = report.At
	}
	for i := range report.Processes {
		if report.Processes[i].Status.Running {
			agent.Processes.Up++
		} else {
			agent.Processes.Down++
		}
	}
	for i := range freezes {
		if f := &freezes[i]; f.Namespace == "" && (agent.FrozenUntil == nil || f.Until.After(*agent.FrozenUntil)) {
			agent.FrozenUntil = &f.Until
		}
	}
}

// listFleet returns a page of the processes in the last reports of hosts.
func (e *exchange) listFleet(ctx context.Context, q *dialect.FleetPage, _ string) (found dialect.FleetProcesses, err error) {
	scan := hostScan{store: e.api.store, after: q.After, batch: min(q.Limit, scanHosts)}
	if q.Business != "" || len(q.Hosts) > 0 {
		if scan.among, err = e.hostsAmong(ctx, q.Business, q.Modules, q.Hosts); err != nil {
			return found, err
		}
	}
	for range maxScans {
		presences, err := scan.next(ctx)
		if err != nil {
			return found, err
		}
		presences = slices.DeleteFunc(presences, func(p taskstore.Presence) bool { return !q.HostFilter.Matches(p.Host, p.AllLabels(), p.Conflict) })
		full, err := e.addProcesses(ctx, q, presences, &found)
		if err != nil || full || scan.over {
			return found, err
		}
		if len(found.Processes) >= q.Limit {
			break
		}
		scan.batch = scanHosts
	}
	found.Next = scan.after
	return found, nil
}

// addProcesses adds the selected processes of hosts, until the page is full. All processes of
// a host are on one page.
func (e *exchange) addProcesses(ctx context.Context, q *dialect.FleetPage, presences []taskstore.Presence, found *dialect.FleetProcesses) (full bool, err error) {
	hosts := make([]procfleet.Host, len(presences))
	for i := range presences {
		hosts[i] = presences[i].Host
	}
	reports, err := e.api.store.Reported(ctx, hosts)
	if err != nil {
		return false, fmt.Errorf("read the reports of %d hosts: %w", len(hosts), err)
	}
	var selected []dialect.FleetProcess
	for i := range reports {
		p, report := &presences[i], &reports[i]
		for _, process := range report.Processes {
			if q.ProcessFilter.Matches(&process) {
				selected = append(selected, dialect.FleetProcess{
					Host: p.Host, AgentID: p.AgentID, Labels: p.AllLabels(), ReportedAt: report.At, ReportedProcess: process,
				})
			}
		}
	}
	if q.Drifted {
		if err := e.addDrift(ctx, selected); err != nil {
			return false, err
		}
		selected = slices.DeleteFunc(selected, func(p dialect.FleetProcess) bool { return !drifted(p.Drift) })
	}
	if room := q.Limit - len(found.Processes); len(selected) > room {
		for room < len(selected) && selected[room].Host == selected[room-1].Host {
			room++
		}
		if full = room < len(selected); full {
			selected, found.Next = selected[:room], selected[room-1].Host
		}
	}
	if q.Drift && !q.Drifted {
		err = e.addDrift(ctx, selected)
	}
	found.Processes = append(found.Processes, selected...)
	return full, err
}

// addDrift compares processes with their registrations.
func (e *exchange) addDrift(ctx context.Context, found []dialect.FleetProcess) error {
	ps := make([]catalog.Process, len(found))
	for i := range found {
		ps[i] = catalog.Process{Host: found[i].Host, Namespace: found[i].Namespace, Name: found[i].Name}
	}
	registered, err := e.api.store.Registrations(ctx, ps)
	if err != nil {
		return fmt.Errorf("read the registrations of %d processes: %w", len(ps), err)
	}
	for i, r := range registered {
		found[i].Drift = driftFrom(r, &found[i].ReportedProcess)
	}
	return nil
}

// driftFrom returns the differences of a process from its registration. A process that was
// stopped or killed on purpose is down and unsupervised without a difference.
func driftFrom(r *catalog.Registration, p *catalog.ReportedProcess) []v1.DriftState {
	if r == nil {
		return []v1.DriftState{v1.DriftUnregistered}
	}
	all := remarks(&r.Spec, &dialect.ProcessEntry{Entry: catalog.Entry{Registration: r, Reported: p}, Alive: true})
	if p.Desired == catalog.DesiredDown {
		all = slices.DeleteFunc(all, func(s v1.DriftState) bool { return s != v1.DriftSpecDiffers })
	}
	return append([]v1.DriftState{}, all...)
}

// drifted reports whether a process differs from its registration. A process without one does not.
func drifted(drift []v1.DriftState) bool { return len(drift) > 0 && drift[0] != v1.DriftUnregistered }

// hostsAmong returns the named hosts, in the order of the list: with a business only those of
// its topology, or of its modules. No named hosts are all of the business.
func (e *exchange) hostsAmong(ctx context.Context, business string, modules []string, named []procfleet.Host) ([]procfleet.Host, error) {
	named = slices.Clone(named)
	if business != "" {
		s, err := newSelector(ctx, e.api.store, business)
		if err != nil {
			return nil, err
		}
		placed := s.hostsOf(modules)
		if len(named) == 0 {
			named = placed
		} else {
			named = slices.DeleteFunc(named, func(h procfleet.Host) bool { return !slices.Contains(placed, h) })
		}
	}
	slices.SortFunc(named, compareHosts)
	return append([]procfleet.Host{}, slices.Compact(named)...), nil // not nil, which means all hosts
}

// compareHosts orders hosts as the task store does: by cloud area and address text.
func compareHosts(a, b procfleet.Host) int {
	return cmp.Or(cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Addr.String(), b.Addr.String()))
}

// hostScan reads hosts with a live agent, in batches, by cloud area and address: all hosts, or
// those of among, which is sorted.
type hostScan struct {
	store   Store
	among   []procfleet.Host // nil = all hosts with a live agent
	missing bool             // hosts of among without a live agent have a presence with no more than the host
	after   procfleet.Host   // the last host that was read
	batch   int
	over    bool // there are no further hosts
}

func (s *hostScan) next(ctx context.Context) ([]taskstore.Presence, error) {
	if s.among == nil {
		page, err := s.store.HostPage(ctx, s.after, s.batch)
		if err != nil {
			return nil, err
		}
		if s.over = len(page) < s.batch; len(page) > 0 {
			s.after = page[len(page)-1].Host
		}
		return page, addLabels(ctx, s.store, page)
	}
	i, found := slices.BinarySearchFunc(s.among, s.after, compareHosts)
	if found {
		i++
	}
	if s.after.IsZero() {
		i = 0
	}
	part := s.among[i:min(i+s.batch, len(s.among))]
	s.over = i+len(part) == len(s.among)
	if len(part) == 0 {
		return nil, nil
	}
	s.after = part[len(part)-1]
	presences, err := s.store.Presences(ctx, part)
	if err != nil {
		return nil, fmt.Errorf("look up the agents of %d hosts: %w", len(part), err)
	}
	if s.missing {
		for i, host := range part {
			presences[i].Host = host
		}
	}
	presences = slices.DeleteFunc(presences, func(p taskstore.Presence) bool { return !live(&p) })
	return presences, addLabels(ctx, s.store, presences)
}
