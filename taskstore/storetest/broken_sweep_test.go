package storetest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

type neverDue struct{ taskstore.Store }

func (s neverDue) Due(context.Context, int, int) ([]taskstore.Visit, error) { return nil, nil }

type latestDueFirst struct{ taskstore.Store }

func (s latestDueFirst) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	ids, err := s.Store.Due(ctx, shard, limit)
	slices.Reverse(ids)
	return ids, err
}

type impatient struct{ taskstore.Store }

func (s impatient) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	now := slices.Clone(next)
	for i := range now {
		now[i].After = 0
	}
	return s.Store.Revisit(ctx, now...)
}

type unsettling struct{ taskstore.Store }

func (s unsettling) Settle(context.Context, ...taskstore.Visit) error { return nil }

type neverRepublished struct{ taskstore.Store }

func (s neverRepublished) Republished(context.Context, procfleet.TaskID, int, uint64) error {
	return nil
}

type leasingToAll struct{ taskstore.Store }

func (s leasingToAll) Lease(context.Context, string, string, time.Duration) (bool, error) {
	return true, nil
}

type leasingForever struct{ taskstore.Store }

func (s leasingForever) Lease(ctx context.Context, name, holder string, _ time.Duration) (bool, error) {
	return s.Store.Lease(ctx, name, holder, 24*time.Hour)
}

type neverRenewing struct {
	taskstore.Store
	holder *sync.Map
}

func (s neverRenewing) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if old, _ := s.holder.Load(name); old == holder {
		return true, nil
	}
	held, err := s.Store.Lease(ctx, name, holder, ttl)
	if held {
		s.holder.Store(name, holder)
	}
	return held, err
}

type shuffledPresences struct{ taskstore.Store }

func (s shuffledPresences) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	slices.Reverse(ps)
	return ps, err
}

// immortal returns the presence of an instance also after it has expired.
type immortal struct {
	taskstore.Store
	seen *sync.Map
}

func (s immortal) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	for i := range ps {
		if !ps[i].Host.IsZero() {
			s.seen.Store(ps[i].Host, ps[i])
		} else if old, ok := s.seen.Load(hosts[i]); ok {
			ps[i] = old.(taskstore.Presence)
		}
	}
	return ps, err
}

func (s immortal) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		s.seen.Store(a.AgentID, a.Host)
	}
	return s.Store.Announce(ctx, as)
}

func (s immortal) Resolve(_ context.Context, ids []string) ([]procfleet.Host, error) {
	out := make([]procfleet.Host, len(ids))
	for i, id := range ids {
		if h, ok := s.seen.Load(id); ok {
			out[i] = h.(procfleet.Host)
		}
	}
	return out, nil
}

func (s immortal) HostPage(context.Context, procfleet.Host, int) ([]taskstore.Presence, error) {
	var page []taskstore.Presence
	s.seen.Range(func(_, h any) bool {
		if h, ok := h.(procfleet.Host); ok {
			page = append(page, taskstore.Presence{Announcement: taskstore.Announcement{Host: h}})
		}
		return len(page) == 0
	})
	return page, nil
}

type alwaysNew struct{ taskstore.Store }

func (s alwaysNew) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	for i := range ps {
		ps[i].Since = ps[i].SeenAt
	}
	return ps, err
}

// lateVisitor first visits every task at the same age.
type lateVisitor struct{ taskstore.Store }

func (s lateVisitor) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	t, created, err := s.Store.Create(ctx, d)
	if created {
		err = s.Revisit(ctx, taskstore.NextVisit{Task: t.ID, After: taskstore.FirstVisit})
	}
	return t, created, err
}

// forgetful treats an instance as new if it announces itself again after its presence has
// expired.
type forgetful struct {
	taskstore.Store
	reborn *sync.Map
}

func (s forgetful) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		ps, err := s.Store.Presences(ctx, []procfleet.Host{a.Host})
		if err != nil {
			return err
		}
		if ps[0].Host.IsZero() {
			s.reborn.Store(a.Host, true)
		}
		if err := s.Store.Announce(ctx, []taskstore.Announcement{a}); err != nil {
			return err
		}
	}
	return nil
}

func (s forgetful) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	for i := range ps {
		if _, ok := s.reborn.Load(hosts[i]); ok {
			ps[i].Since = ps[i].SeenAt
		}
	}
	return ps, err
}

// unforgetting never forgets the time of the first announcement of an instance.
type unforgetting struct {
	taskstore.Store
	first *sync.Map
}

func (s unforgetting) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		now, err := s.Now(ctx)
		if err != nil {
			return err
		}
		s.first.LoadOrStore(a.Host.String()+a.Instance, now)
	}
	return s.Store.Announce(ctx, as)
}

func (s unforgetting) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	for i := range ps {
		if first, ok := s.first.Load(hosts[i].String() + ps[i].Instance); ok {
			ps[i].Since = first.(time.Time)
		}
	}
	return ps, err
}

// conflicting reports the same value of Conflict for every presence once two instances of a
// host have announced themselves.
type conflicting struct {
	taskstore.Store
	answer    bool
	instances *sync.Map
}

func (s conflicting) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		if old, ok := s.instances.Swap(a.Host, a.Instance); ok && old != a.Instance {
			s.instances.Store(a.Host.String(), true)
		}
	}
	return s.Store.Announce(ctx, as)
}

func (s conflicting) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	ps, err := s.Store.Presences(ctx, hosts)
	for i := range ps {
		_, two := s.instances.Load(hosts[i].String())
		ps[i].Conflict = two && s.answer
	}
	return ps, err
}

type neverLeaving struct{ taskstore.Store }

func (s neverLeaving) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for i := range as {
		as[i].Leaving = false
	}
	return s.Store.Announce(ctx, as)
}

// farewellBlind ends the presence of a host at the farewell of any instance.
type farewellBlind struct{ taskstore.Store }

func (s farewellBlind) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		if a.Leaving {
			ps, err := s.Presences(ctx, []procfleet.Host{a.Host})
			if err != nil {
				return err
			}
			a.Instance = ps[0].Instance
		}
		if err := s.Store.Announce(ctx, []taskstore.Announcement{a}); err != nil {
			return err
		}
	}
	return nil
}

type firstAddressOnly struct {
	taskstore.Store
	first *sync.Map
}

func (s firstAddressOnly) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	hosts, err := s.Store.Resolve(ctx, ids)
	for i := range hosts {
		if old, ok := s.first.LoadOrStore(ids[i], hosts[i]); ok {
			hosts[i] = old.(procfleet.Host)
		}
	}
	return hosts, err
}

type skippingHosts struct{ taskstore.Store }

func (s skippingHosts) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	ps, err := s.Store.HostPage(ctx, after, limit+1)
	if len(ps) > limit {
		ps = ps[1:]
	}
	return ps, err
}

// latestClock decides which hosts are silent by the latest time that it has ever read.
type latestClock struct {
	taskstore.Store
	latest *atomic.Int64 // Unix milliseconds
}

func (s latestClock) Announce(ctx context.Context, as []taskstore.Announcement) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	s.latest.Store(max(s.latest.Load(), now.UnixMilli()))
	return s.Store.Announce(ctx, as)
}

func (s latestClock) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	ps, err := s.Store.HostPage(ctx, after, limit)
	silent := time.UnixMilli(s.latest.Load()).Add(-taskstore.PresenceTTL)
	return slices.DeleteFunc(ps, func(p taskstore.Presence) bool { return p.SeenAt.Before(silent) }), err
}

type deaf struct{ taskstore.Store }

func (s deaf) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	return s.Store.Create(context.WithoutCancel(ctx), d)
}

type stopped struct{ taskstore.Store }

func (s stopped) Now(context.Context) (time.Time, error) { return time.Unix(1, 0), nil }

type neverNotified struct{ taskstore.Store }

func (s neverNotified) Notified(context.Context, ...procfleet.TaskID) error { return nil }

type neverPublished struct{ taskstore.Store }

func (s neverPublished) Published(context.Context, procfleet.TaskID) error { return nil }

type publishedIsNotified struct{ taskstore.Store }

func (s publishedIsNotified) Published(ctx context.Context, id procfleet.TaskID) error {
	return errors.Join(s.Store.Published(ctx, id), s.Notified(ctx, id))
}

// publishesOpen counts the event of an open task as published.
type publishesOpen struct {
	taskstore.Store
	published *sync.Map
}

func (s publishesOpen) Published(ctx context.Context, id procfleet.TaskID) error {
	s.published.Store(id, true)
	return s.Store.Published(ctx, id)
}

func (s publishesOpen) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if _, ok := s.published.Load(id); ok {
		t.EventPublished = true
	}
	return t, err
}

type settlesOpen struct{ taskstore.Store }

func (s settlesOpen) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	err := s.Store.Notified(ctx, ids...)
	for _, id := range ids {
		err = errors.Join(err, s.Settle(ctx, taskstore.Visit{Task: id}))
	}
	return err
}

// notifiesFirst records only the first of several tasks as notified.
type notifiesFirst struct{ taskstore.Store }

func (s notifiesFirst) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	return s.Store.Notified(ctx, ids[:1]...)
}

// stopsAtAbsent records no task as notified that follows an id without a task.
type stopsAtAbsent struct{ taskstore.Store }

func (s stopsAtAbsent) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	for _, id := range ids {
		if _, err := s.Task(ctx, id); err != nil {
			return nil //nolint:nilerr // that is the defect
		}
		if err := s.Store.Notified(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// stalling waits until the clock has caught up after it stepped back.
type stalling struct{ taskstore.Store }

func (s stalling) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	visits, err := s.Store.Due(ctx, shard, limit)
	return slices.DeleteFunc(visits, func(v taskstore.Visit) bool { return v.At.After(now) }), err
}

// holding ends a lease at a fixed time of the clock, also if the clock steps back.
type holding struct {
	taskstore.Store
	holders *sync.Map // lease to tenure
}

type tenure struct {
	holder string
	until  time.Time
}

func (s holding) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return false, err
	}
	if has, ok := s.holders.Load(name); ok && has.(tenure).holder != holder && now.Before(has.(tenure).until) {
		return false, nil
	}
	held, err := s.Store.Lease(ctx, name, holder, ttl)
	if held {
		s.holders.Store(name, tenure{holder, now.Add(ttl)})
	}
	return held, err
}

// dateless returns the current time as the due time of every visit.
type dateless struct{ taskstore.Store }

func (s dateless) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	visits, err := s.Store.Due(ctx, shard, limit)
	now, nowErr := s.Now(ctx)
	for i := range visits {
		visits[i].At = now
	}
	return visits, errors.Join(err, nowErr)
}

// patient does not limit the delay of a visit.
type patient struct {
	taskstore.Store
	later *sync.Map // task to the time of its visit
}

func (s patient) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	for _, v := range next {
		s.later.Store(v.Task, now.Add(v.After))
	}
	return s.Store.Revisit(ctx, next...)
}

func (s patient) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	visits, err := s.Store.Due(ctx, shard, limit)
	now, nowErr := s.Now(ctx)
	return slices.DeleteFunc(visits, func(v taskstore.Visit) bool {
		at, ok := s.later.Load(v.Task)
		return ok && now.Before(at.(time.Time))
	}), errors.Join(err, nowErr)
}

// firstOnly settles only the first visit of a call with several visits.
type firstOnly struct{ taskstore.Store }

func (s firstOnly) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	return s.Store.Settle(ctx, visits[:min(1, len(visits))]...)
}

// settlesAnyMoment removes the visit of a task even if a new time was set after the sweep
// read it.
type settlesAnyMoment struct{ taskstore.Store }

func (s settlesAnyMoment) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	visits = slices.Clone(visits)
	for i := range visits {
		visits[i].At = time.Time{}
	}
	return s.Store.Settle(ctx, visits...)
}

// gapless omits missing tasks instead of returning an empty task in their position.
type gapless struct{ taskstore.Store }

func (s gapless) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	tasks, err := s.Store.TasksByID(ctx, ids)
	return slices.DeleteFunc(tasks, func(t procfleet.Task) bool { return t.ID == "" }), err
}

// noneDelivered returns no delivered items.
type noneDelivered struct{ taskstore.Store }

func (s noneDelivered) DeliveredItems(_ context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	return make([][]procfleet.ItemResult, len(tasks)), nil
}

// stateBlind returns every item of a task as delivered.
type stateBlind struct{ taskstore.Store }

func (s stateBlind) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	all := make([][]procfleet.ItemResult, len(tasks))
	for i := range tasks {
		if tasks[i].Chunks != 1 {
			continue
		}
		rows, err := s.Chunk(ctx, tasks[i].ID, 0)
		if err != nil && !errors.Is(err, taskstore.ErrNotFound) {
			return nil, err
		}
		all[i] = rows
	}
	return all, nil
}
