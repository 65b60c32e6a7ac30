package catalogtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Each of these stores violates one rule, and is otherwise correct.

type labelless struct{ store }

func (s labelless) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	ds = slices.Clone(ds)
	for i := range ds {
		ds[i].Spec.Labels = nil
	}
	return s.store.Register(ctx, ds, replace)
}

func (s labelless) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	gs = slices.Clone(gs)
	for i := range gs {
		gs[i].Labels = nil
	}
	return s.store.SetGroups(ctx, gs)
}

type shuffledRegistrations struct{ store }

func (s shuffledRegistrations) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	rs, err := s.store.Registrations(ctx, ps)
	slices.Reverse(rs)
	return rs, err
}

type replacing struct {
	store
	always bool
}

func (s replacing) Register(ctx context.Context, ds []catalog.Definition, _ bool) ([][]bool, error) {
	return s.store.Register(ctx, ds, s.always)
}

// hasty treats late registrations like punctual ones.
type hasty struct{ store }

func (s hasty) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	ds = slices.Clone(ds)
	for i := range ds {
		ds[i].Asked = time.Time{}
	}
	return s.store.Register(ctx, ds, replace)
}

// renewing returns the time of the read as the time of each registration.
type renewing struct{ store }

func (s renewing) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	rs, err := s.store.Registrations(ctx, ps)
	now, _ := s.Now(ctx)
	for i, r := range rs {
		if r != nil {
			rs[i] = &catalog.Registration{Process: r.Process, Spec: r.Spec, RegisteredAt: now}
		}
	}
	return rs, err
}

type lookingFirst struct{ store }

func (s lookingFirst) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	var existed [][]bool
	for _, d := range ds {
		there := make([]bool, len(d.Hosts))
		for j, h := range d.Hosts {
			rs, err := s.Registrations(ctx, []catalog.Process{d.Process(h)})
			if err != nil {
				return nil, err
			}
			there[j] = rs[0] != nil
		}
		existed = append(existed, there)
	}
	_, err := s.store.Register(ctx, ds, replace)
	return existed, err
}

type firstAlways struct{ store }

func (s firstAlways) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	existed, err := s.store.Register(ctx, ds, replace)
	for i := range existed {
		clear(existed[i])
	}
	return existed, err
}

func (s firstAlways) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	existed, err := s.store.Unregister(ctx, ps)
	clear(existed)
	return existed, err
}

type thereAlways struct{ store }

func (s thereAlways) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	_, err := s.store.Unregister(ctx, ps)
	return slices.Repeat([]bool{true}, len(ps)), err
}

type keeping struct{ store }

func (s keeping) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	rs, err := s.Registrations(ctx, ps)
	existed := make([]bool, len(rs))
	for i, r := range rs {
		existed[i] = r != nil
	}
	return existed, err
}

// endingAll ends every registration, whichever request made it.
type endingAll struct{ store }

func (s endingAll) EndRegistrations(ctx context.Context, ps []catalog.Process, _ time.Time) ([]bool, error) {
	return s.Unregister(ctx, ps)
}

// crowding sets labels without a bound and without validation.
type crowding struct {
	store
	labels map[procfleet.Host]map[string]string
}

func (s crowding) LabelHosts(_ context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	for _, h := range hosts {
		s.labels[h], _ = l.Apply(s.labels[h])
	}
	return slices.Repeat([]bool{true}, len(hosts)), nil
}

func (s crowding) LabelsOf(_ context.Context, hosts []procfleet.Host) ([]map[string]string, error) {
	all := make([]map[string]string, len(hosts))
	for i, h := range hosts {
		if len(s.labels[h]) > 0 {
			all[i] = s.labels[h]
		}
	}
	return all, nil
}

// relabeling drops the labels of before.
type relabeling struct{ store }

func (s relabeling) LabelHosts(ctx context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	before, err := s.LabelsOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	for i := range before {
		for key := range before[i] {
			l.Remove = append(slices.Clone(l.Remove), key)
		}
	}
	return s.store.LabelHosts(ctx, hosts, l)
}

var errTooMany = errors.New("too many arguments")

type small struct{ store }

func (s small) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	for _, d := range ds {
		if len(d.Hosts) > 2000 {
			return nil, errTooMany
		}
	}
	return s.store.Register(ctx, ds, replace)
}

type hostsAsText struct{ store }

func (s hostsAsText) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	hs, err := s.store.RegisteredHosts(ctx, namespace, name, procfleet.Host{}, 1_000_000)
	slices.SortFunc(hs, func(a, b procfleet.Host) int { return strings.Compare(a.String(), b.String()) })
	hs = slices.DeleteFunc(hs, func(h procfleet.Host) bool { return h.String() <= after.String() })
	return hs[:min(limit, len(hs))], err
}

type lastHostNeeded struct{ store }

func (s lastHostNeeded) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	if rs, err := s.Registrations(ctx, []catalog.Process{{Host: after, Namespace: namespace, Name: name}}); !after.IsZero() && (err != nil || rs[0] == nil) {
		return nil, err
	}
	return s.store.RegisteredHosts(ctx, namespace, name, after, limit)
}

type caseless struct{ store }

func (s caseless) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	ds = slices.Clone(ds)
	for i := range ds {
		ds[i].Spec.Namespace = strings.ToLower(ds[i].Spec.Namespace)
	}
	return s.store.Register(ctx, ds, replace)
}

func (s caseless) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	rs := make([]*catalog.Registration, len(ps))
	for i, p := range ps {
		p.Namespace = strings.ToLower(p.Namespace)
		found, err := s.store.Registrations(ctx, []catalog.Process{p})
		if err != nil {
			return nil, err
		}
		if found[0] != nil {
			rs[i] = &catalog.Registration{Process: ps[i], Spec: found[0].Spec, RegisteredAt: found[0].RegisteredAt}
		}
	}
	return rs, nil
}

// lenient stores the valid entries of an invalid call.
type lenient struct{ store }

func (s lenient) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	ds = slices.DeleteFunc(slices.Clone(ds), func(d catalog.Definition) bool {
		return slices.ContainsFunc(d.Hosts, func(h procfleet.Host) bool { return d.Process(h).Validate() != nil })
	})
	return s.store.Register(ctx, ds, replace)
}

type momentless struct{ store }

func (s momentless) Report(ctx context.Context, reports []catalog.Report) error {
	for i := range reports {
		for j := range reports[i].Processes {
			reports[i].Processes[j].Status.NextRetryAt = time.Time{}
		}
	}
	return s.store.Report(ctx, reports)
}

type shuffledReports struct{ store }

func (s shuffledReports) Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
	rs, err := s.store.Reported(ctx, hosts)
	slices.Reverse(rs)
	return rs, err
}

// received counts reports.
var received atomic.Int64

type lastReport struct{ store }

func (s lastReport) Report(ctx context.Context, reports []catalog.Report) error {
	reports = slices.Clone(reports)
	for i := range reports {
		reports[i].Number = received.Add(1)
	}
	return s.store.Report(ctx, reports)
}

type equalReport struct{ store }

func (s equalReport) Report(ctx context.Context, reports []catalog.Report) error {
	reports = slices.Clone(reports)
	for i := range reports {
		reports[i].Number = reports[i].Number<<10 + received.Add(1)&1023
	}
	return s.store.Report(ctx, reports)
}

// addingUp keeps the processes that a new report no longer contains.
type addingUp struct{ store }

func (s addingUp) Report(ctx context.Context, reports []catalog.Report) error {
	for _, r := range reports {
		old, err := s.Reported(ctx, []procfleet.Host{r.Host})
		if err != nil {
			return err
		}
		r.Processes = append(slices.Clone(old[0].Processes), r.Processes...)
		if err := s.store.Report(ctx, []catalog.Report{r}); err != nil {
			return err
		}
	}
	return nil
}

type namedOnly struct{ store }

func (s namedOnly) Report(ctx context.Context, reports []catalog.Report) error {
	reports = slices.Clone(reports)
	for i, r := range reports {
		reports[i].Processes = slices.DeleteFunc(slices.Clone(r.Processes), func(p catalog.ReportedProcess) bool { return p.Name == "" })
	}
	return s.store.Report(ctx, reports)
}

type firstOfTwo struct{ store }

func (s firstOfTwo) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	page, total, err := s.store.EntryPage(ctx, namespace, start, limit)
	for i := range page {
		rs, err := s.Reported(ctx, []procfleet.Host{page[i].Host})
		if err != nil {
			return nil, 0, err
		}
		for j, p := range slices.Backward(rs[0].Processes) {
			if p.Namespace == namespace && p.Name == page[i].Name {
				page[i].Reported = &rs[0].Processes[j]
			}
		}
	}
	return page, total, err
}

type shuffledEntries struct{ store }

func (s shuffledEntries) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	es, err := s.store.Entries(ctx, ps)
	slices.Reverse(es)
	return es, err
}

type eitherOr struct{ store }

func (s eitherOr) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	es, err := s.store.Entries(ctx, ps)
	for i := range es {
		if es[i].Registration != nil {
			es[i].Reported = nil
		}
	}
	return es, err
}

type sortedPages struct {
	store
	compare func(a, b catalog.Entry) int
}

func byHost(a, b catalog.Entry) int { return a.Host.Addr.Compare(b.Host.Addr) }

func reportedFirst(a, b catalog.Entry) int {
	switch {
	case (a.Reported == nil) == (b.Reported == nil):
		return 0
	case a.Reported != nil:
		return -1
	}
	return 1
}

func (s sortedPages) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	all, total, err := s.store.EntryPage(ctx, namespace, 0, 1_000_000)
	slices.SortStableFunc(all, s.compare)
	start = min(start, total)
	return all[start:min(start+limit, total)], total, err
}

type wholePages struct{ store }

func (s wholePages) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	return s.store.EntryPage(ctx, namespace, start/limit*limit, limit)
}

type countingTo1000 struct{ store }

func (s countingTo1000) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	page, total, err := s.store.EntryPage(ctx, namespace, start, limit)
	return page, min(total, 1000), err
}

type stubborn struct{ store }

func (s stubborn) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	gs = slices.DeleteFunc(slices.Clone(gs), func(g catalog.HostGroups) bool { return len(g.Groups) == 0 })
	return s.store.SetGroups(ctx, gs)
}

type cloudless struct{ store }

func (s cloudless) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	gs = slices.Clone(gs)
	for i := range gs {
		gs[i].Host.Cloud = 0
	}
	return s.store.SetGroups(ctx, gs)
}

type picky struct{ store }

func (s picky) Report(ctx context.Context, reports []catalog.Report) error {
	if len(reports) == 0 {
		return errors.New("wrong number of arguments")
	}
	return s.store.Report(ctx, reports)
}

type deaf struct{ store }

func (s deaf) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	return s.store.SetGroups(context.WithoutCancel(ctx), gs)
}

// forgetful is about one namespace of a host.
type forgetful struct{ store }

func (s forgetful) GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	all, err := s.store.GroupsOf(ctx, hosts)
	for i := range all {
		all[i] = all[i][:min(1, len(all[i]))]
	}
	return all, err
}

// lawless applies the last policies to all namespaces.
type lawless struct{ store }

func (s lawless) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	return errors.Join(s.store.SetPolicies(ctx, namespace, p), s.store.SetPolicies(ctx, "3", p))
}

// restless forgets the last run of a schedule that is replaced.
type restless struct{ store }

func (s restless) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	if schedule.Validate() == nil {
		_, _ = s.RemoveSchedule(ctx, schedule.Namespace, schedule.Name)
	}
	return s.store.SetSchedule(ctx, schedule)
}

// haunted records the runs of schedules that do not exist.
type haunted struct{ store }

func (s haunted) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	if err := s.store.RecordRun(ctx, namespace, name, r); err != nil {
		return err
	}
	all, err := s.Schedules(ctx)
	if err == nil && !slices.ContainsFunc(all, func(s catalog.Schedule) bool { return s.Namespace == namespace && s.Name == name }) {
		err = errors.Join(s.SetSchedule(ctx, catalog.Schedule{
			Namespace: namespace, Name: name, ScheduleRule: procfleet.ScheduleRule{Cron: "* * * * *"}, Task: []byte("{}"),
		}), s.store.RecordRun(ctx, namespace, name, r))
	}
	return err
}

// repeating records earlier runs as later ones.
type repeating struct{ store }

func (s repeating) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	r.Slot = r.Slot.Add(time.Hour * time.Duration(60-r.Slot.Minute()))
	return s.store.RecordRun(ctx, namespace, name, r)
}

type oneSchedule struct{ store }

func (s oneSchedule) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	all, err := s.store.Schedules(ctx)
	return all[:min(1, len(all))], err
}

// losing stores valid schedules instead of invalid ones.
type losing struct{ store }

func (s losing) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	if schedule.Validate() != nil {
		return ctx.Err()
	}
	return s.store.SetSchedule(ctx, schedule)
}

// piling adds policies to the old ones.
type piling struct{ store }

func (s piling) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	old, err := s.Policies(ctx, []string{namespace})
	if err != nil {
		return err
	}
	for name, policy := range p.Policies {
		if old[0].Policies == nil {
			old[0].Policies = map[string]procfleet.RolloutPolicy{}
		}
		old[0].Policies[name] = policy
	}
	p.Policies = old[0].Policies
	return s.store.SetPolicies(ctx, namespace, p)
}

type boundless struct{ store }

func (s boundless) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	if p.Validate() == nil {
		p.RequiredAbove = 0
	}
	return s.store.SetPolicies(ctx, namespace, p)
}

type silent struct{ store }

func (s silent) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	if f.Validate() == nil {
		f.Reason = ""
	}
	return s.store.Freeze(ctx, scopes, f)
}

// patient never shortens a freeze.
type patient struct{ store }

func (s patient) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	for _, scope := range scopes {
		page, err := s.FreezePage(ctx, catalog.Scope{}, 1)
		if err != nil {
			return time.Time{}, err
		}
		if len(page) > 0 && page[0].Scope == scope {
			return page[0].Until, nil
		}
	}
	return s.store.Freeze(ctx, scopes, f)
}

type eternal struct{ store }

func (s eternal) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	until, err := s.store.Freeze(ctx, scopes, f)
	if err == nil {
		f.TTL = catalog.MaxFreeze
		_, err = s.store.Freeze(ctx, scopes, f)
	}
	return until, err
}

type liftsAlways struct{ store }

func (s liftsAlways) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	_, err := s.store.Lift(ctx, scopes)
	return slices.Repeat([]bool{true}, len(scopes)), err
}

// frozenThrough never lifts a freeze.
type frozenThrough struct{ store }

func (s frozenThrough) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	return make([]bool, len(scopes)), ctx.Err()
}

type ownOnly struct{ store }

func (s ownOnly) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	all, err := s.store.FreezesOf(ctx, hosts)
	for i := range all {
		all[i] = slices.DeleteFunc(all[i], func(f catalog.Freeze) bool { return f.Host.IsZero() })
	}
	return all, err
}

type freezesAsText struct{ store }

func (s freezesAsText) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	all, err := s.store.FreezePage(ctx, catalog.Scope{}, 1_000_000)
	text := func(s catalog.Scope) string { return s.Host.String() + s.Namespace }
	slices.SortFunc(all, func(a, b catalog.Freeze) int { return strings.Compare(text(a.Scope), text(b.Scope)) })
	all = slices.DeleteFunc(all, func(f catalog.Freeze) bool { return text(f.Scope) <= text(after) })
	return all[:min(limit, len(all))], err
}

type fewFreezes struct{ store }

func (s fewFreezes) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	return s.store.Freeze(ctx, scopes[:min(1000, len(scopes))], f)
}

// obliging corrects invalid arguments instead of rejecting them.
type obliging struct{ store }

func (s obliging) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	f.TTL = min(max(f.TTL, catalog.MinFreeze), catalog.MaxFreeze)
	return s.store.Freeze(ctx, scopes, f)
}

func (s obliging) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	if catalog.CheckPolicies(namespace, &p) == nil {
		return s.store.SetPolicies(ctx, namespace, p)
	}
	return nil
}
