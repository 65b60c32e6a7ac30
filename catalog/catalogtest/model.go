package catalogtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func modelChecks() []Check {
	return []Check{
		{Name: "any order of calls does what a plain model does", Fn: agreesWithModel, Heavy: true},
		{Name: "any order of edits does what a plain model does, and random searches find what a plain search finds", Fn: editsAgreeWithModel, Heavy: true},
	}
}

// Model is the reference implementation of [catalog.Store] in memory. Its results share
// memory with it.
type Model struct {
	mu         sync.Mutex
	registered map[catalog.Process]*catalog.Registration
	asked      map[catalog.Process]time.Time // request time of each registered spec
	reports    map[procfleet.Host]catalog.Report
	groups     map[catalog.Process]catalog.HostGroups // Name is empty
	labels     map[procfleet.Host]map[string]string
	freezes    map[catalog.Scope]catalog.Freeze
	policies   map[string]catalog.RolloutPolicies
	schedules  map[[2]string]catalog.Schedule
	webhooks   map[[2]string]catalog.Webhook
	dead       map[[2]string]map[uint64]catalog.DeadDelivery
	templates  map[catalog.Business]map[int64]catalog.Template
	lastID     int64 // last template id
	topologies map[catalog.Business]*catalog.Topology
	now        time.Time
}

// NewModel returns an empty Model.
func NewModel() *Model {
	return &Model{
		registered: map[catalog.Process]*catalog.Registration{},
		asked:      map[catalog.Process]time.Time{},
		reports:    map[procfleet.Host]catalog.Report{},
		groups:     map[catalog.Process]catalog.HostGroups{},
		labels:     map[procfleet.Host]map[string]string{},
		freezes:    map[catalog.Scope]catalog.Freeze{},
		policies:   map[string]catalog.RolloutPolicies{},
		schedules:  map[[2]string]catalog.Schedule{},
		webhooks:   map[[2]string]catalog.Webhook{},
		dead:       map[[2]string]map[uint64]catalog.DeadDelivery{},
		templates:  map[catalog.Business]map[int64]catalog.Template{},
		topologies: map[catalog.Business]*catalog.Topology{},
		now:        epoch,
	}
}

// lock begins a call. It returns the function that ends the call, or an error if ctx
// has ended.
func (m *Model) lock(ctx context.Context) (func(), error) {
	m.mu.Lock()
	return m.mu.Unlock, ctx.Err()
}

// Now returns a time that advances with each call.
func (m *Model) Now(ctx context.Context) (time.Time, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	m.now = m.now.Add(time.Millisecond)
	return m.now, err
}

// Register implements [catalog.Registrations].
func (m *Model) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	now, err := m.Now(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range ds {
		for _, h := range d.Hosts {
			if err := d.Process(h).Validate(); err != nil {
				return nil, err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	existed := make([][]bool, len(ds))
	for i, d := range ds {
		existed[i] = make([]bool, len(d.Hosts))
		for j, h := range d.Hosts {
			p := d.Process(h)
			r, late := catalog.Registration{Process: p, Spec: d.Spec, RegisteredAt: now}, !d.Asked.IsZero()
			if old := m.registered[p]; old != nil {
				existed[i][j], r.RegisteredAt = true, old.RegisteredAt
				if !replace || late && !m.asked[p].Before(d.Asked) {
					continue
				}
			}
			if m.registered[p], m.asked[p] = &r, now; late {
				m.asked[p] = d.Asked
			}
		}
	}
	return existed, nil
}

// Unregister implements [catalog.Registrations].
func (m *Model) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	existed := make([]bool, len(ps))
	for i, p := range ps {
		existed[i] = m.registered[p] != nil
		delete(m.registered, p)
	}
	return existed, nil
}

// EndRegistrations implements [catalog.Registrations].
func (m *Model) EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	ended := make([]bool, len(ps))
	for i, p := range ps {
		r := m.registered[p]
		if ended[i] = r != nil && m.asked[p].Equal(asked) && !r.RegisteredAt.Before(asked); ended[i] {
			delete(m.registered, p)
		}
	}
	return ended, nil
}

// LabelHosts implements [catalog.HostLabels].
func (m *Model) LabelHosts(ctx context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err = errors.Join(err, l.Validate()); err != nil {
		return nil, err
	}
	changed := make([]bool, len(hosts))
	for i, h := range hosts {
		var labels map[string]string
		if labels, changed[i] = l.Apply(m.labels[h]); changed[i] {
			m.labels[h] = labels
		}
	}
	return changed, nil
}

// LabelsOf implements [catalog.HostLabels].
func (m *Model) LabelsOf(ctx context.Context, hosts []procfleet.Host) ([]map[string]string, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	all := make([]map[string]string, len(hosts))
	for i, h := range hosts {
		if len(m.labels[h]) > 0 {
			all[i] = maps.Clone(m.labels[h])
		}
	}
	return all, err
}

// Registrations implements [catalog.Registrations].
func (m *Model) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([]*catalog.Registration, len(ps))
	for i, p := range ps {
		out[i] = m.registered[p]
	}
	return out, err
}

// RegisteredHosts implements [catalog.Registrations].
func (m *Model) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	var hs []procfleet.Host
	for p := range m.registered {
		if p.Namespace == namespace && p.Name == name && (after.IsZero() || compareHosts(p.Host, after) > 0) {
			hs = append(hs, p.Host)
		}
	}
	slices.SortFunc(hs, compareHosts)
	return hs[:min(limit, len(hs))], err
}

func compareHosts(a, b procfleet.Host) int {
	return cmp.Or(cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Addr.String(), b.Addr.String()))
}

// Report implements [catalog.Entries].
func (m *Model) Report(ctx context.Context, reports []catalog.Report) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	for _, r := range reports {
		old, known := m.reports[r.Host]
		if r.Host.IsZero() || known && r.Number <= old.Number {
			continue
		}
		r.Processes = slices.Clone(r.Processes)
		m.reports[r.Host] = inUTC(r)
	}
	return nil
}

// Reported implements [catalog.Entries].
func (m *Model) Reported(ctx context.Context, hs []procfleet.Host) ([]catalog.Report, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([]catalog.Report, len(hs))
	for i, h := range hs {
		out[i] = m.reports[h]
	}
	return out, err
}

// Entries implements [catalog.Entries].
func (m *Model) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([]catalog.Entry, len(ps))
	for i, p := range ps {
		out[i] = m.entry(p)
	}
	return out, err
}

func (m *Model) entry(p catalog.Process) catalog.Entry {
	e := catalog.Entry{Process: p, Registration: m.registered[p]}
	r := m.reports[p.Host]
	for i, one := range slices.Backward(r.Processes) {
		if one.Namespace == p.Namespace && one.Name == p.Name && p.Validate() == nil {
			e.Reported, e.ReportedAt, e.AgentID = &r.Processes[i], r.At, r.AgentID
			break
		}
	}
	return e
}

// EntryPage implements [catalog.Entries].
func (m *Model) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	known := map[catalog.Process]bool{}
	for p := range m.registered {
		known[p] = p.Namespace == namespace
	}
	for h, r := range m.reports {
		for _, one := range r.Processes {
			p := catalog.Process{Host: h, Namespace: one.Namespace, Name: one.Name}
			known[p] = p.Namespace == namespace && p.Validate() == nil
		}
	}
	maps.DeleteFunc(known, func(_ catalog.Process, here bool) bool { return !here })
	all := slices.SortedFunc(maps.Keys(known), func(a, b catalog.Process) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareHosts(a.Host, b.Host))
	})
	from := min(start, len(all))
	var page []catalog.Entry
	for _, p := range all[from:min(from+limit, len(all))] {
		page = append(page, m.entry(p))
	}
	return page, len(all), err
}

// SetGroups implements [catalog.Groups].
func (m *Model) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	for _, g := range gs {
		if err := g.Validate(); err != nil {
			return err
		}
	}
	for _, g := range gs {
		key := catalog.Process{Host: g.Host, Namespace: g.Namespace}
		m.groups[key] = g
		if len(g.Groups) == 0 {
			delete(m.groups, key)
		}
	}
	return nil
}

// Groups implements [catalog.Groups].
func (m *Model) Groups(ctx context.Context, namespace string, hs []procfleet.Host) ([]catalog.HostGroups, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([]catalog.HostGroups, len(hs))
	for i, h := range hs {
		g, ok := m.groups[catalog.Process{Host: h, Namespace: namespace}]
		if !ok {
			g = catalog.HostGroups{Host: h, Namespace: namespace}
		}
		out[i] = g
	}
	return out, err
}

// GroupsOf implements [catalog.Groups].
func (m *Model) GroupsOf(ctx context.Context, hs []procfleet.Host) ([][]catalog.HostGroups, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([][]catalog.HostGroups, len(hs))
	for i, h := range hs {
		for key, g := range m.groups {
			if key.Host == h {
				out[i] = append(out[i], g)
			}
		}
		slices.SortFunc(out[i], func(a, b catalog.HostGroups) int { return cmp.Compare(a.Namespace, b.Namespace) })
	}
	return out, err
}

// SetPolicies implements [catalog.Policies].
func (m *Model) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err == nil {
		err = catalog.CheckPolicies(namespace, &p)
	}
	if err == nil {
		m.policies[namespace] = p
	}
	return err
}

// Policies implements [catalog.Policies].
func (m *Model) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	found := make([]catalog.RolloutPolicies, len(namespaces))
	for i, namespace := range namespaces {
		found[i] = m.policies[namespace]
	}
	return found, err
}

// SetSchedule implements [catalog.Schedules].
func (m *Model) SetSchedule(ctx context.Context, s catalog.Schedule) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err = cmp.Or(err, s.Validate()); err == nil {
		key := [2]string{s.Namespace, s.Name}
		s.Last = m.schedules[key].Last
		m.schedules[key] = s
	}
	return err
}

// RemoveSchedule implements [catalog.Schedules].
func (m *Model) RemoveSchedule(ctx context.Context, namespace, name string) (bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	key := [2]string{namespace, name}
	_, existed := m.schedules[key]
	if err == nil {
		delete(m.schedules, key)
	}
	return existed, err
}

// Schedules implements [catalog.Schedules].
func (m *Model) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	order := func(a, b catalog.Schedule) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	return slices.SortedFunc(maps.Values(m.schedules), order), err
}

// RecordRun implements [catalog.Schedules].
func (m *Model) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	key := [2]string{namespace, name}
	if s, exists := m.schedules[key]; err == nil && exists && !s.Last.Slot.After(r.Slot) {
		s.Last = r
		m.schedules[key] = s
	}
	return err
}

// Freeze implements [catalog.Freezes].
func (m *Model) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	now, err := m.Now(ctx)
	err = cmp.Or(err, f.Validate())
	for _, scope := range scopes {
		err = cmp.Or(err, scope.Validate())
	}
	if err != nil {
		return time.Time{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	until := now.Add(f.TTL)
	for _, scope := range scopes {
		m.freezes[scope] = catalog.Freeze{Scope: scope, Until: until, Reason: f.Reason, By: f.By}
	}
	return until, nil
}

// Lift implements [catalog.Freezes].
func (m *Model) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return nil, err
	}
	existed := make([]bool, len(scopes))
	for i, scope := range scopes {
		f, there := m.freezes[scope]
		existed[i] = there && m.now.Before(f.Until)
		delete(m.freezes, scope)
	}
	return existed, nil
}

// FreezePage implements [catalog.Freezes].
func (m *Model) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	page := m.frozen(func(s catalog.Scope) bool { return compareScopes(s, after) > 0 })
	return page[:min(limit, len(page))], err
}

// FreezesOf implements [catalog.Freezes].
func (m *Model) FreezesOf(ctx context.Context, hs []procfleet.Host) ([][]catalog.Freeze, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([][]catalog.Freeze, len(hs))
	for i, h := range hs {
		out[i] = m.frozen(func(s catalog.Scope) bool { return s.Host.IsZero() || s.Host == h })
	}
	return out, err
}

// frozen returns the freezes in effect whose scope meets of, in order.
func (m *Model) frozen(of func(catalog.Scope) bool) []catalog.Freeze {
	var fs []catalog.Freeze
	for scope, f := range m.freezes {
		if m.now.Before(f.Until) && of(scope) {
			fs = append(fs, f)
		}
	}
	slices.SortFunc(fs, func(a, b catalog.Freeze) int { return compareScopes(a.Scope, b.Scope) })
	return fs
}

func compareScopes(a, b catalog.Scope) int {
	everywhere := func(s catalog.Scope) int {
		if s.Host.IsZero() {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(everywhere(a), everywhere(b)), compareHosts(a.Host, b.Host), cmp.Compare(a.Namespace, b.Namespace))
}

// agreesWithModel makes the same random calls to a store and to a Model, and compares
// the results and the stored data.
func agreesWithModel(ctx context.Context, t T, s Subject) {
	seed := rand.Uint64()
	w := &walk{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), both: [2]catalog.Store{s, NewModel()},
		hosts: []procfleet.Host{host(0, 1), host(0, 2), host(12, 1)}, namespaces: []string{"shop", "mall"}, names: []string{"web", "db", "a:b"},
	}
	for n := range s.rounds(100, 300) {
		if !w.step(ctx, n) || n%20 == 19 && !w.agree(ctx) {
			t.Fatalf("failing seed: %d", seed)
		}
	}
}

// walk makes the same random calls to two stores. It uses so few processes that the
// calls affect each other.
type walk struct {
	t          T
	random     *rand.Rand
	both       [2]catalog.Store
	hosts      []procfleet.Host
	namespaces []string
	names      []string
}

func one[E any](w *walk, of []E) E { return of[w.random.IntN(len(of))] }

func some[E any](w *walk, of []E) []E {
	var out []E
	for range w.random.IntN(4) {
		out = append(out, one(w, of))
	}
	return out
}

func (w *walk) processes() []catalog.Process {
	return processes(some(w, w.hosts), one(w, w.namespaces), one(w, w.names))
}

func (w *walk) scopes() []catalog.Scope {
	var scopes []catalog.Scope
	for range w.random.IntN(4) {
		switch h, n := one(w, w.hosts), one(w, w.namespaces); w.random.IntN(3) {
		case 0:
			scopes = append(scopes, onHost(h))
		case 1:
			scopes = append(scopes, everywhere(n))
		default:
			scopes = append(scopes, catalog.Scope{Host: h, Namespace: n})
		}
	}
	return scopes
}

// untimed returns freezes without their ends, which depend on each store's clock.
func untimed(fs []catalog.Freeze) []catalog.Freeze {
	fs = slices.Clone(fs)
	for i := range fs {
		fs[i].Until = time.Time{}
	}
	return fs
}

func (w *walk) step(ctx context.Context, n int) bool {
	w.t.Helper()
	switch w.random.IntN(9) {
	case 8:
		hosts := some(w, w.hosts)
		keys := []string{"zone", "rack"}
		l := catalog.Labeling{Set: map[string]string{one(w, keys): fmt.Sprint(n)}, Remove: []string{one(w, keys)}}
		return w.same("labeled", func(s catalog.Store) (any, error) { return s.LabelHosts(ctx, hosts, l) })
	case 0, 1:
		var ds []catalog.Definition
		for i := range w.random.IntN(3) {
			ds = append(ds, catalog.Definition{Spec: marked(one(w, w.namespaces), one(w, w.names), fmt.Sprint(n, ".", i)), Hosts: some(w, w.hosts)})
		}
		replace := w.random.IntN(2) == 0
		return w.same("existed", func(s catalog.Store) (any, error) { return s.Register(ctx, ds, replace) })
	case 2:
		ps := append(w.processes(), w.processes()...)
		return w.same("existed", func(s catalog.Store) (any, error) { return s.Unregister(ctx, ps) })
	case 3:
		var gs []catalog.HostGroups
		for range w.random.IntN(3) {
			gs = append(gs, groupOf(one(w, w.hosts), one(w, w.namespaces), one(w, []string{"", fmt.Sprint(n)})))
		}
		return w.same("set groups", func(s catalog.Store) (any, error) { return nil, s.SetGroups(ctx, gs) })
	case 4:
		scopes := w.scopes()
		return w.same("freeze", func(s catalog.Store) (any, error) {
			_, err := s.Freeze(ctx, scopes, catalog.Freezing{TTL: time.Hour, Reason: fmt.Sprint(n)})
			return nil, err
		})
	case 5:
		scopes := w.scopes()
		return w.same("lifted", func(s catalog.Store) (any, error) { return s.Lift(ctx, scopes) })
	default:
		var rs []catalog.Report
		for range w.random.IntN(3) {
			r := report(one(w, w.hosts), n+w.random.IntN(10)-5)
			for range w.random.IntN(5) {
				r.Processes = append(r.Processes, running(one(w, w.namespaces), one(w, w.names), n))
			}
			rs = append(rs, r)
		}
		return w.same("report", func(s catalog.Store) (any, error) { return nil, s.Report(ctx, rs) })
	}
}

// same makes a call to both stores and compares the results.
func (w *walk) same(what string, call func(s catalog.Store) (any, error)) bool {
	w.t.Helper()
	got, err := call(w.both[0])
	must(w.t, err, what)
	want, err := call(w.both[1])
	must(w.t, err, what)
	return equal(w.t, what, got, want)
}

// agree compares all data that the stores return.
func (w *walk) agree(ctx context.Context) bool {
	w.t.Helper()
	same := w.same("reports", func(s catalog.Store) (any, error) { return s.Reported(ctx, w.hosts) })
	same = same && w.same("groups of hosts", func(s catalog.Store) (any, error) { return s.GroupsOf(ctx, w.hosts) })
	same = same && w.same("freezes", func(s catalog.Store) (any, error) { return untimed(freezeWalk(ctx, w.t, s, 3)), nil })
	for _, h := range w.hosts {
		same = same && w.same("labels of a host", func(s catalog.Store) (any, error) { return s.LabelsOf(ctx, []procfleet.Host{h}) })
		same = same && w.same("freezes of a host", func(s catalog.Store) (any, error) { return untimed(freezesOf(ctx, w.t, s, h)[0]), nil })
	}
	for _, namespace := range w.namespaces {
		same = same && w.same("groups", func(s catalog.Store) (any, error) { return s.Groups(ctx, namespace, w.hosts) })
		same = same && w.same("entries", func(s catalog.Store) (any, error) { return stands(entryWalk(ctx, w.t, s, namespace, 4)), nil })
		for _, name := range w.names {
			same = same && w.same("entries by name", func(s catalog.Store) (any, error) {
				return stands(entries(ctx, w.t, s, processes(w.hosts, namespace, name)...)), nil
			})
			same = same && w.same("hosts", func(s catalog.Store) (any, error) { return hostWalk(ctx, w.t, s, namespace, name, 2), nil })
		}
	}
	return same
}
