package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// showDrift compares a process of the catalog with the reports of agents.
func (e *exchange) showDrift(ctx context.Context, q *dialect.DriftQuery, _ string) (*dialect.Drift, error) {
	t, err := e.api.template(ctx, q.Business, q.ID)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, &dialect.Error{Kind: dialect.NotFound, Problem: catalog.ErrNoTemplate.Error()}
	}
	where, err := placed(ctx, e.api.store, q.Business)
	if err != nil {
		return nil, err
	}
	view := newDriftView(t, q.Business, where, q.Modules)
	if err := e.api.cfg.Limits.items(len(view.on)); err != nil {
		return nil, err
	}
	if err := e.api.compare(ctx, view); err != nil {
		return nil, err
	}
	if view.drift.Elsewhere, err = e.api.elsewhere(ctx, view); err != nil {
		return nil, err
	}
	return view.result(q.Limit), nil
}

// compare adds the state of the process on each host, as agents reported it.
func (a *api) compare(ctx context.Context, v *driftView) error {
	for part := range slices.Chunk(v.on, hostsAtOnce) {
		ps := make([]catalog.Process, len(part))
		for i := range part {
			ps[i] = catalog.Process{Host: part[i].Host, Namespace: v.drift.Process.Namespace, Name: v.drift.Process.Name}
		}
		entries, err := a.store.Entries(ctx, ps)
		if err != nil {
			return fmt.Errorf("read entries of %s: %w", v.drift.Process.Key(), err)
		}
		found, err := a.withAgents(ctx, entries)
		if err != nil {
			return err
		}
		for i := range found {
			v.add(&part[i], &found[i])
		}
	}
	return nil
}

// elsewhere returns the hosts where the process is registered although it is bound to
// none of the modules that contain the host.
func (a *api) elsewhere(ctx context.Context, v *driftView) ([]procfleet.Host, error) {
	var (
		hosts []procfleet.Host
		after procfleet.Host
		p     = &v.drift.Process
	)
	for {
		page, err := a.store.RegisteredHosts(ctx, p.Namespace, p.Name, after, hostsAtOnce)
		if err != nil {
			return nil, fmt.Errorf("look up where %s is registered: %w", p.Key(), err)
		}
		for _, h := range page {
			if !v.bound[h] {
				hosts = append(hosts, h)
			}
		}
		if len(page) < hostsAtOnce {
			return hosts, a.cfg.Limits.items(len(hosts))
		}
		after = page[len(page)-1]
	}
}

// driftView is a comparison in progress.
type driftView struct {
	drift dialect.Drift
	on    []catalog.Placement     // the hosts to compare
	at    map[string]int          // module path → index in drift.Modules
	bound map[procfleet.Host]bool // hosts of all bound modules, including modules that the request omits
}

// newDriftView selects modules of a process and their hosts: the modules named in only,
// or all if it is empty.
func newDriftView(t *catalog.Template, b catalog.Business, where *catalog.Topology, only []string) *driftView {
	v := &driftView{
		drift: dialect.Drift{ID: t.ID, Process: t.Spec(b), Counts: make(map[v1.DriftState]int)},
		at:    make(map[string]int), bound: make(map[procfleet.Host]bool),
	}
	byName := where.ModulesByName()
	var wanted []catalog.PlacedModule
	for _, name := range t.Modules {
		modules := byName[name]
		for _, m := range modules {
			for _, h := range m.Hosts {
				v.bound[h] = true
			}
		}
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		if len(modules) == 0 {
			v.drift.Missing = append(v.drift.Missing, name)
		}
		wanted = append(wanted, modules...)
	}
	for _, m := range wanted {
		v.at[m.Path()] = len(v.drift.Modules)
		v.drift.Modules = append(v.drift.Modules, dialect.ModuleDrift{
			Set: m.Set, Module: m.Name, Hosts: len(m.Hosts), Counts: make(map[v1.DriftState]int),
		})
	}
	v.on = catalog.Placements(wanted)
	return v
}

// add compares one host and counts the result.
func (v *driftView) add(p *catalog.Placement, found *dialect.ProcessEntry) {
	d := &v.drift
	h := dialect.HostDrift{
		Host: p.Host, AgentID: found.AgentID, Modules: p.Modules, Remarks: remarks(&d.Process, found),
		Reported: found.Reported, ReportedAt: found.ReportedAt,
	}
	state := h.State()
	for _, path := range p.Modules {
		d.Modules[v.at[path]].Counts[state]++
	}
	d.Total++
	d.Counts[state]++
	d.Hosts = append(d.Hosts, h)
}

// result sorts the hosts, those with differences first, and truncates the list to
// limit.
func (v *driftView) result(limit int) *dialect.Drift {
	hosts := v.drift.Hosts
	slices.SortFunc(hosts, func(a, b dialect.HostDrift) int {
		return cmp.Or(
			cmp.Compare(min(len(b.Remarks), 1), min(len(a.Remarks), 1)),
			cmp.Compare(a.Host.Cloud, b.Host.Cloud), a.Host.Addr.Compare(b.Host.Addr),
		)
	})
	v.drift.Hosts = hosts[:min(limit, len(hosts))]
	return &v.drift
}

// remarks returns the differences between the wanted process and its state on a host,
// in the order of [dialect.DriftStates]. Without a live agent it does not compare the
// last report, which may be outdated.
func remarks(want *procfleet.ProcessSpec, found *dialect.ProcessEntry) []v1.DriftState {
	var all []v1.DriftState
	differs := found.Registration != nil && !sameSpec(*want, found.Registration.Spec)
	if !found.Alive {
		all = append(all, v1.DriftAgentMissing)
	} else {
		if running(found.Reported) < max(want.Alive.Instances, 1) {
			all = append(all, v1.DriftDown)
		}
		if want.Alive.Type == procfleet.Resident && (found.Reported == nil || !found.Reported.Status.Supervised) {
			all = append(all, v1.DriftUnsupervised)
		}
		differs = differs || found.Reported != nil && found.Reported.ProcName != "" && found.Reported.ProcName != want.ProcName
	}
	if differs {
		all = append(all, v1.DriftSpecDiffers)
	}
	return all
}

func running(r *catalog.ReportedProcess) int {
	if r == nil || !r.Status.Running {
		return 0
	}
	return max(len(r.Status.PIDs), 1)
}

// sameSpec reports whether two specs are equal. It treats nil maps and empty maps as
// equal.
func sameSpec(a, b procfleet.ProcessSpec) bool {
	for _, s := range []*procfleet.ProcessSpec{&a, &b} {
		if len(s.Labels) == 0 {
			s.Labels = nil
		}
		if len(s.Control.Environment) == 0 {
			s.Control.Environment = nil
		}
	}
	return reflect.DeepEqual(&a, &b)
}
