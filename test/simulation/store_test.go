package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

// store is the task store of a fleet, with faults. It can fail over to a replica
// that lacks the writes since it was cut off. As in redisstore with
// --redis-wait-replicas, no reply confirms such a write.
type store struct {
	dir   string
	clock func() time.Time

	mu      sync.RWMutex // locked for writing during a fail-over
	current *stores.Bolt
	path    string // file of current
	copies  int

	fault  sync.Mutex // guards the fields below
	random *rand.Rand
	away   bool          // calls fail
	slow   time.Duration // longest delay of a call
	mute   float64       // probability that the reply to an executed call is lost
	alone  bool          // no replica confirms writes
	behind string        // file of the replica that is cut off
}

func openStore(dir string, clock func() time.Time, random *rand.Rand) (*store, error) {
	s := &store{dir: dir, clock: clock, random: random, slow: time.Millisecond, path: filepath.Join(dir, "tasks.db")}
	var err error
	s.current, err = s.open(s.path)
	return s, err
}

func (s *store) open(path string) (*stores.Bolt, error) {
	return stores.OpenBolt(path, boltdb.Options{Clock: s.clock})
}

func (s *store) edit(f func()) {
	s.fault.Lock()
	defer s.fault.Unlock()
	f()
}

// cutReplica cuts off the replica; a fail-over loses all writes after it.
func (s *store) cutReplica() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies++
	path := filepath.Join(s.dir, fmt.Sprintf("replica-%d.db", s.copies))
	data, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	s.edit(func() { s.alone, s.behind = true, path })
	return os.WriteFile(path, data, 0o600)
}

// failOver promotes the replica that was cut off.
func (s *store) failOver() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.current.Close(); err != nil {
		return err
	}
	s.edit(func() { s.path, s.alone = s.behind, false })
	var err error
	s.current, err = s.open(s.path)
	return err
}

func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Close()
}

var (
	_ dispatcher.Store = (*client)(nil)
	_ worker.Store     = (*client)(nil)
)

// client is the connection of one role to the store.
type client struct {
	*stores.Bolt // nil: a call that a role makes and that has no method here panics
	of           *store
	dead         atomic.Bool
	// defect, if not nil, adds an earlier defect to the store.
	defect *storeDefect
}

// storeDefect changes the behavior of single calls.
type storeDefect struct {
	due     func([]taskstore.Visit, time.Time) []taskstore.Visit
	created func(context.Context, taskstore.Store, procfleet.TaskID)
	plan    func(*procfleet.RolloutPlan)
	begun   func(*taskstore.Begun)
}

func (s *store) connect() *client { return &client{of: s} }

// before determines whether a call reaches the store.
func (c *client) before(ctx context.Context) error {
	var away bool
	var delay time.Duration
	c.of.edit(func() { away, delay = c.of.away, time.Duration(c.of.random.Int64N(int64(c.of.slow))) })
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return ctx.Err()
	}
	if away || c.dead.Load() {
		return fmt.Errorf("%w: connection refused", taskstore.ErrUnavailable)
	}
	return nil
}

// after determines whether the reply to a call reaches the role.
func (c *client) after(ctx context.Context, changes bool) error {
	var mute, alone bool
	c.of.edit(func() { mute, alone = c.of.random.Float64() < c.of.mute, c.of.alone })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case mute || c.dead.Load():
		return fmt.Errorf("%w: connection lost", taskstore.ErrUnavailable)
	case changes && alone:
		return fmt.Errorf("%w: no replica confirmed the write", taskstore.ErrUnavailable)
	}
	return nil
}

// call executes one call with its faults.
func call[T any](ctx context.Context, c *client, changes bool, do func(*stores.Bolt) (T, error)) (v T, err error) {
	if err := c.before(ctx); err != nil {
		return v, err
	}
	c.of.mu.RLock()
	v, err = do(c.of.current)
	c.of.mu.RUnlock()
	if err != nil {
		return v, err
	}
	if err := c.after(ctx, changes); err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func read[T any](ctx context.Context, c *client, do func(*stores.Bolt) (T, error)) (T, error) {
	return call(ctx, c, false, do)
}

func write[T any](ctx context.Context, c *client, do func(*stores.Bolt) (T, error)) (T, error) {
	return call(ctx, c, true, do)
}

// change is write for calls without a result.
func change(ctx context.Context, c *client, do func(*stores.Bolt) error) error {
	_, err := write(ctx, c, func(s *stores.Bolt) (struct{}, error) { return struct{}{}, do(s) })
	return err
}

type created struct {
	task procfleet.Task
	is   bool
}

func (c *client) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	var made procfleet.Task
	if c.defect != nil && c.defect.plan != nil && d.Rollout != nil {
		plan := *d.Rollout
		c.defect.plan(&plan)
		d.Rollout = &plan
	}
	r, err := write(ctx, c, func(s *stores.Bolt) (created, error) {
		t, is, err := s.Create(ctx, d)
		made = t
		if c.defect != nil && c.defect.created != nil && is && err == nil {
			c.defect.created(ctx, s, t.ID)
		}
		return created{t, is}, err
	})
	if err != nil {
		return made, false, err
	}
	return r.task, r.is, nil
}

func (c *client) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Dispatched(ctx, id, sequences) })
}

func (c *client) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	return write(ctx, c, func(s *stores.Bolt) (bool, error) { return s.Reject(ctx, id, reason) })
}

func (c *client) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := write(ctx, c, func(s *stores.Bolt) (taskstore.Begun, error) { return s.Begin(ctx, id, chunk, upto) })
	if d := c.defect; d != nil && d.begun != nil && b.Gate == taskstore.GateOpen {
		d.begun(&b)
	}
	return b, err
}

func (c *client) Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Away(ctx, id, chunk, items, sent) })
}

func (c *client) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Delivered(ctx, id, chunk, items, done) })
}

func (c *client) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	return write(ctx, c, func(s *stores.Bolt) ([]taskstore.Recorded, error) { return s.Record(ctx, batches) })
}

func (c *client) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.Pause(ctx, id, reason, seq) })
}

func (c *client) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.Resume(ctx, id, seq) })
}

func (c *client) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.Cancel(ctx, id, mode, reason, seq) })
}

func (c *client) CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) {
		return s.CancelItems(ctx, id, items, mode, reason, seq)
	})
}

func (c *client) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	return write(ctx, c, func(s *stores.Bolt) (taskstore.Advanced, error) { return s.AdvanceRollout(ctx, id, o) })
}

func (c *client) EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.EndHold(ctx, id, kind, failures, seq) })
}

func (c *client) ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error) {
	return read(ctx, c, func(s *stores.Bolt) (taskstore.CanceledItems, error) { return s.ItemCancels(ctx, id, chunk) })
}

func (c *client) ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.ItemsCanceled(ctx, id, chunk, seq) })
}

func (c *client) JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.JudgeStage(ctx, id, stage, hold) })
}

func (c *client) KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.KeepPrevious(ctx, id, specs) })
}

func (c *client) PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]taskstore.PreviousSpecs, error) { return s.PreviousSpecs(ctx, id, chunk) })
}

func (c *client) Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]procfleet.Transition, error) { return s.Transitions(ctx, id, after, upto) })
}

func (c *client) TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.TransitionsSent(ctx, id, upto) })
}

func (c *client) LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.LinkUndo(ctx, id, undo) })
}

func (c *client) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	return write(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.Retried(ctx, id, retry) })
}

func (c *client) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	return read(ctx, c, func(s *stores.Bolt) (procfleet.Task, error) { return s.Task(ctx, id) })
}

func (c *client) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]procfleet.Task, error) { return s.Tasks(ctx, q) })
}

func (c *client) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]procfleet.ItemResult, error) { return s.Chunk(ctx, id, chunk) })
}

func (c *client) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]procfleet.Host, error) { return s.Owners(ctx, id, items) })
}

type page struct {
	results []procfleet.ItemResult
	next    string
}

func (c *client) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	p, err := read(ctx, c, func(s *stores.Bolt) (p page, err error) {
		p.results, p.next, err = s.Results(ctx, id, q)
		return p, err
	})
	return p.results, p.next, err
}

func (c *client) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	return write(ctx, c, func(s *stores.Bolt) (bool, error) { return s.Lease(ctx, name, holder, ttl) })
}

func (c *client) Release(ctx context.Context, name, holder string) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Release(ctx, name, holder) })
}

func (c *client) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]taskstore.Visit, error) {
		visits, err := s.Due(ctx, shard, limit)
		if c.defect != nil && c.defect.due != nil {
			visits = c.defect.due(visits, c.of.clock())
		}
		return visits, err
	})
}

func (c *client) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]procfleet.Task, error) { return s.TasksByID(ctx, ids) })
}

func (c *client) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	return read(ctx, c, func(s *stores.Bolt) ([][]procfleet.ItemResult, error) { return s.DeliveredItems(ctx, tasks) })
}

func (c *client) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	return write(ctx, c, func(s *stores.Bolt) ([]taskstore.UndoneChunk, error) { return s.Undone(ctx, id) })
}

func (c *client) Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Republished(ctx, id, chunk, sequence) })
}

func (c *client) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Revisit(ctx, next...) })
}

func (c *client) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Settle(ctx, visits...) })
}

func (c *client) Published(ctx context.Context, id procfleet.TaskID) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Published(ctx, id) })
}

func (c *client) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Notified(ctx, ids...) })
}

func (c *client) Announce(ctx context.Context, as []taskstore.Announcement) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Announce(ctx, as) })
}

func (c *client) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]taskstore.Presence, error) { return s.Presences(ctx, hosts) })
}

func (c *client) Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error) {
	return read(ctx, c, func(s *stores.Bolt) ([][]procfleet.Host, error) { return s.Claimants(ctx, agentIDs) })
}

func (c *client) Now(ctx context.Context) (time.Time, error) {
	return read(ctx, c, func(s *stores.Bolt) (time.Time, error) { return s.Now(ctx) })
}

func (c *client) Report(ctx context.Context, reports []catalog.Report) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.Report(ctx, reports) })
}

func (c *client) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	return write(ctx, c, func(s *stores.Bolt) ([][]bool, error) { return s.Register(ctx, ds, replace) })
}

func (c *client) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]*catalog.Registration, error) { return s.Registrations(ctx, ps) })
}

func (c *client) EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	return write(ctx, c, func(s *stores.Bolt) ([]bool, error) { return s.EndRegistrations(ctx, ps, asked) })
}

func (c *client) Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]catalog.Report, error) { return s.Reported(ctx, hosts) })
}

func (c *client) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]catalog.RolloutPolicies, error) { return s.Policies(ctx, namespaces) })
}

func (c *client) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.SetSchedule(ctx, schedule) })
}

func (c *client) RemoveSchedule(ctx context.Context, namespace, name string) (bool, error) {
	return write(ctx, c, func(s *stores.Bolt) (bool, error) { return s.RemoveSchedule(ctx, namespace, name) })
}

func (c *client) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]catalog.Schedule, error) { return s.Schedules(ctx) })
}

func (c *client) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.SetWebhook(ctx, w) })
}

func (c *client) RemoveWebhook(ctx context.Context, application, name string) (bool, error) {
	return write(ctx, c, func(s *stores.Bolt) (bool, error) { return s.RemoveWebhook(ctx, application, name) })
}

func (c *client) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]catalog.Webhook, error) { return s.Webhooks(ctx) })
}

func (c *client) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.RecordDelivery(ctx, application, name, state, dead) })
}

func (c *client) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	return read(ctx, c, func(s *stores.Bolt) ([]catalog.DeadDelivery, error) { return s.DeadDeliveries(ctx, application, name) })
}

func (c *client) RemoveDead(ctx context.Context, application, name string, position uint64) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.RemoveDead(ctx, application, name, position) })
}

func (c *client) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	return change(ctx, c, func(s *stores.Bolt) error { return s.RecordRun(ctx, namespace, name, r) })
}

func (c *client) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	return read(ctx, c, func(s *stores.Bolt) ([][]catalog.Freeze, error) { return s.FreezesOf(ctx, hosts) })
}

func (c *client) GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	return read(ctx, c, func(s *stores.Bolt) ([][]catalog.HostGroups, error) { return s.GroupsOf(ctx, hosts) })
}
