package worker_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// fakeStore stores tasks in maps. Unlike a real store it can be made unavailable, and a test can set its
// contents to those after a crash.
type fakeStore struct {
	mu         sync.Mutex
	away       bool
	last       procfleet.Number
	tasks      map[procfleet.TaskID]*fakeTask
	visits     map[procfleet.TaskID]time.Time
	presences  map[procfleet.Host]taskstore.Presence
	leases     map[string]string
	calls      map[string]int
	reports    map[procfleet.Host]catalog.Report
	registered map[catalog.Process]procfleet.ProcessSpec
	asked      map[catalog.Process]time.Time // the request times of the entries of registered
	freezes    map[procfleet.Host][]catalog.Freeze
	groups     map[procfleet.Host][]catalog.HostGroups
	// unconfirmed is the number of next Record calls that store their results and fail.
	unconfirmed int
	stuck       procfleet.TaskID             // its visit does not move
	looking     func(hosts []procfleet.Host) // if set, is called by Presences first
}

type fakeTask struct {
	task    procfleet.Task
	chunks  []procfleet.Chunk
	done    []bool
	begun   []time.Time
	seqs    []uint64
	states  []procfleet.State
	results []procfleet.Result
	broken  bool // Record fails
	// refusals is the number of next Record calls that fail without an effect.
	refusals int
	// holds, if positive, is the number of Begin calls for which a hold lasts.
	holds int
	// cancels are those of items of the first chunk.
	cancels []taskstore.ItemCancel
	// unreadable makes Task and TasksByID fail.
	unreadable bool
	// damaged makes DeliveredItems and Results fail.
	damaged bool
}

var errUnreadable = errors.New("fake: task is damaged")

func newFakeStore() *fakeStore {
	return &fakeStore{
		tasks: map[procfleet.TaskID]*fakeTask{}, visits: map[procfleet.TaskID]time.Time{},
		presences: map[procfleet.Host]taskstore.Presence{}, leases: map[string]string{}, calls: map[string]int{},
		reports:    map[procfleet.Host]catalog.Report{},
		registered: map[catalog.Process]procfleet.ProcessSpec{},
		asked:      map[catalog.Process]time.Time{},
		freezes:    map[procfleet.Host][]catalog.Freeze{},
		groups:     map[procfleet.Host][]catalog.HostGroups{},
	}
}

// create stores a task as a dispatcher does.
func (s *fakeStore) create(lane procfleet.Lane, timeout time.Duration, chunks ...procfleet.Chunk) procfleet.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	s.last = max(s.last+1, procfleet.Number(now.UnixMicro()))
	f := &fakeTask{chunks: chunks, done: make([]bool, len(chunks)), begun: make([]time.Time, len(chunks)), seqs: make([]uint64, len(chunks))}
	for i := range chunks {
		f.chunks[i].First = len(f.states)
		for range chunks[i].Items {
			f.states = append(f.states, procfleet.StatePending)
		}
	}
	f.results = make([]procfleet.Result, len(f.states))
	var actions []procfleet.Action
	for _, c := range chunks {
		for _, it := range c.Items {
			if !slices.Contains(actions, it.Action) {
				actions = append(actions, it.Action)
			}
		}
	}
	f.task = procfleet.Task{
		ID: s.last.TaskID(), Number: s.last, State: procfleet.TaskAccepted, Lane: lane,
		Items: len(f.states), Chunks: len(chunks), Actions: actions,
		CreatedAt: now, Deadline: now.Add(timeout), ExpiresAt: now.Add(timeout + time.Hour),
	}
	s.tasks[f.task.ID] = f
	s.visits[f.task.ID] = now
	return f.task
}

// change edits a stored task.
func (s *fakeStore) change(id procfleet.TaskID, edit func(*fakeTask)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s.tasks[id])
}

func (s *fakeStore) setUnavailable(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *fakeStore) called(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[name]
}

// result returns an item's state and result.
func (s *fakeStore) result(id procfleet.TaskID, item int) (procfleet.State, procfleet.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[id].states[item], s.tasks[id].results[item]
}

func (s *fakeStore) settled(id procfleet.TaskID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.visits[id]
	return !open
}

// enter counts a call and locks the store. Unless it returns an error, the caller must unlock.
func (s *fakeStore) enter(name string) error {
	s.mu.Lock()
	s.calls[name]++
	if s.away {
		s.mu.Unlock()
		return taskstore.ErrUnavailable
	}
	return nil
}

func (s *fakeStore) Begin(_ context.Context, id procfleet.TaskID, chunk, _ int) (taskstore.Begun, error) {
	if err := s.enter("Begin"); err != nil {
		return taskstore.Begun{}, err
	}
	defer s.mu.Unlock()
	now := time.Now().UTC()
	b := taskstore.Begun{Now: now, Gate: taskstore.GateGone}
	f := s.tasks[id]
	if f == nil || chunk >= len(f.chunks) {
		return b, nil
	}
	c := f.chunks[chunk]
	b.Deadline = f.task.Deadline
	for i := range c.Items {
		if !f.states[c.First+i].Final() {
			b.Open = append(b.Open, i)
		}
		if f.states[c.First+i] == procfleet.StateDelivered {
			b.Delivered = append(b.Delivered, i)
		}
	}
	switch {
	case f.task.State == procfleet.TaskRejected:
		b.Gate = taskstore.GateRejected
	case len(b.Open) == 0, f.done[chunk]:
		b.Gate = taskstore.GateFinished
	case f.task.Held():
		b.Gate = taskstore.GateHeld
		if f.holds--; f.holds == 0 {
			f.task.Hold = procfleet.Hold{}
		}
	case now.After(f.task.Deadline):
		b.Gate = taskstore.GateOverdue
	default:
		if f.begun[chunk].IsZero() {
			f.begun[chunk] = now
		}
		f.task.State = procfleet.TaskRunning
		b.Gate, b.Task, b.Chunk, b.FirstBegun = taskstore.GateOpen, s.view(f), c, f.begun[chunk]
		b.Chunk.Specs = slices.Clone(c.Specs)
		return b, nil
	}
	b.Open, b.Delivered = nil, nil
	return b, nil
}

func (s *fakeStore) Delivered(_ context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	if err := s.enter("Delivered"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil {
		return taskstore.ErrNotFound
	}
	for _, i := range items {
		if f.states[i] == procfleet.StatePending {
			f.states[i] = procfleet.StateDelivered
		}
	}
	f.done[chunk] = f.done[chunk] || done
	return nil
}

// The tasks of the fake have no rollouts: the tests of rollouts use a real store.
func (s *fakeStore) AdvanceRollout(context.Context, procfleet.TaskID, taskstore.Advance) (taskstore.Advanced, error) {
	return taskstore.Advanced{}, taskstore.ErrNotFound
}

func (s *fakeStore) Away(context.Context, procfleet.TaskID, int, []int, bool) error {
	return taskstore.ErrNotFound
}

func (s *fakeStore) CancelItems(context.Context, procfleet.TaskID, []taskstore.ChunkItems, procfleet.CancelMode, string, int) (procfleet.Task, error) {
	return procfleet.Task{}, taskstore.ErrNotFound
}

func (s *fakeStore) JudgeStage(context.Context, procfleet.TaskID, int, procfleet.Hold) (procfleet.Task, error) {
	return procfleet.Task{}, taskstore.ErrNotFound
}

func (s *fakeStore) KeepPrevious(context.Context, procfleet.TaskID, []taskstore.PreviousSpecs) error {
	return taskstore.ErrNotFound
}

func (s *fakeStore) PreviousSpecs(context.Context, procfleet.TaskID, int) ([]taskstore.PreviousSpecs, error) {
	return nil, taskstore.ErrNotFound
}

func (s *fakeStore) Transitions(context.Context, procfleet.TaskID, int, int) ([]procfleet.Transition, error) {
	return nil, taskstore.ErrNotFound
}

func (s *fakeStore) TransitionsSent(context.Context, procfleet.TaskID, int) error {
	return taskstore.ErrNotFound
}

func (s *fakeStore) LinkUndo(context.Context, procfleet.TaskID, procfleet.TaskID) (procfleet.Task, error) {
	return procfleet.Task{}, taskstore.ErrNotFound
}

func (s *fakeStore) Create(context.Context, taskstore.Draft) (procfleet.Task, bool, error) {
	return procfleet.Task{}, false, taskstore.ErrNotFound
}

func (s *fakeStore) Tasks(context.Context, taskstore.TaskQuery) ([]procfleet.Task, error) {
	return nil, taskstore.ErrNotFound
}

func (s *fakeStore) Registrations(context.Context, []catalog.Process) ([]*catalog.Registration, error) {
	return nil, taskstore.ErrNotFound
}

func (s *fakeStore) Cancel(_ context.Context, id procfleet.TaskID, _ procfleet.CancelMode, _ string, _ int) (procfleet.Task, error) {
	return procfleet.Task{}, taskstore.ErrNotFound
}

func (s *fakeStore) ItemCancels(_ context.Context, id procfleet.TaskID, chunk int) (c taskstore.CanceledItems, err error) {
	if err := s.enter("ItemCancels"); err != nil {
		return c, err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil || chunk != 0 || len(f.cancels) == 0 {
		return c, nil
	}
	c = taskstore.CanceledItems{Cancels: slices.Clone(f.cancels), Task: s.view(f), Chunk: f.chunks[0], FirstBegun: f.begun[0]}
	for i := range c.Chunk.Items {
		if !f.states[i].Final() {
			c.Open = append(c.Open, i)
		}
	}
	return c, nil
}

func (s *fakeStore) ItemsCanceled(_ context.Context, id procfleet.TaskID, _, seq int) error {
	if err := s.enter("ItemsCanceled"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	f.cancels = slices.DeleteFunc(f.cancels, func(c taskstore.ItemCancel) bool { return c.Seq <= seq })
	f.task.ItemCancels = min(len(f.cancels), 1)
	return nil
}

func (s *fakeStore) Record(_ context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	if err := s.enter("Record"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, b := range batches {
		if f := s.tasks[b.Task]; f != nil && (f.broken || f.refusals > 0) {
			f.refusals--
			return nil, errors.New("fake: record is damaged")
		}
	}
	recorded := make([]taskstore.Recorded, len(batches))
	for i, b := range batches {
		f := s.tasks[b.Task]
		if f == nil {
			continue
		}
		recorded[i].Known = true
		open := f.open()
		for _, r := range b.Results {
			if f.apply(r) {
				recorded[i].Applied++
			}
		}
		if open > 0 && f.open() == 0 {
			recorded[i].Completed = true
			f.task.State, f.task.NotifyPending, f.task.FinishedAt = procfleet.TaskFinished, true, time.Now().UTC()
		}
	}
	if s.unconfirmed > 0 {
		s.unconfirmed--
		return nil, taskstore.ErrUnavailable
	}
	return recorded, nil
}

func (f *fakeTask) open() int {
	n := 0
	for _, state := range f.states {
		if !state.Final() {
			n++
		}
	}
	return n
}

func (f *fakeTask) apply(r procfleet.Result) bool {
	if r.Item >= len(f.results) || r.Rank <= f.results[r.Item].Rank {
		return false
	}
	r.Late = f.states[r.Item].Final()
	f.results[r.Item], f.states[r.Item] = r, r.State()
	return true
}

func (s *fakeStore) view(f *fakeTask) procfleet.Task {
	task := f.task
	task.Counts = procfleet.Counts{}
	for _, state := range f.states {
		task.Counts[state]++
	}
	return task
}

func (s *fakeStore) Task(_ context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	if err := s.enter("Task"); err != nil {
		return procfleet.Task{}, err
	}
	defer s.mu.Unlock()
	if f := s.tasks[id]; f != nil {
		if f.unreadable {
			return procfleet.Task{}, errUnreadable
		}
		return s.view(f), nil
	}
	return procfleet.Task{}, taskstore.ErrNotFound
}

func (f *fakeTask) items(chunk int) []procfleet.ItemResult {
	c := &f.chunks[chunk]
	items := make([]procfleet.ItemResult, len(c.Items))
	for i := range c.Items {
		items[i] = procfleet.ItemResult{
			Index: c.First + i, Item: c.Items[i], Spec: c.Spec(i),
			State: f.states[c.First+i], Result: f.results[c.First+i],
		}
	}
	return items
}

func (s *fakeStore) Chunk(_ context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	if err := s.enter("Chunk"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if f := s.tasks[id]; f != nil && chunk < len(f.chunks) {
		return f.items(chunk), nil
	}
	return nil, taskstore.ErrNotFound
}

func (s *fakeStore) Owners(_ context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	if err := s.enter("Owners"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil {
		return nil, taskstore.ErrNotFound
	}
	hosts := make([]procfleet.Host, len(items))
	for n := range f.chunks {
		for _, row := range f.items(n) {
			for i, item := range items {
				if item == row.Index {
					hosts[i] = row.Item.Target.Host
				}
			}
		}
	}
	return hosts, nil
}

func (s *fakeStore) Results(_ context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	if err := s.enter("Results"); err != nil {
		return nil, "", err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil {
		return nil, "", taskstore.ErrNotFound
	}
	if f.damaged {
		return nil, "", errUnreadable
	}
	after := -1
	if q.Cursor != "" {
		after, _ = strconv.Atoi(q.Cursor)
	}
	var page []procfleet.ItemResult
	for chunk := range f.chunks {
		for _, item := range f.items(chunk) {
			if item.State != q.State || item.Index <= after {
				continue
			}
			if len(page) == q.Limit {
				return page, strconv.Itoa(page[len(page)-1].Index), nil
			}
			page = append(page, item)
		}
	}
	return page, "", nil
}

func (s *fakeStore) Dispatched(_ context.Context, id procfleet.TaskID, sequences []uint64) error {
	if err := s.enter("Dispatched"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.tasks[id].task.Dispatched = true
	s.tasks[id].seqs = sequences
	return nil
}

func (s *fakeStore) Lease(_ context.Context, name, holder string, _ time.Duration) (bool, error) {
	if err := s.enter("Lease"); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	if other := s.leases[name]; other != "" && other != holder {
		return false, nil
	}
	s.leases[name] = holder
	return true, nil
}

func (s *fakeStore) Release(_ context.Context, name, holder string) error {
	if err := s.enter("Release"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.leases[name] == holder {
		delete(s.leases, name)
	}
	return nil
}

func (s *fakeStore) Due(_ context.Context, shard, limit int) ([]taskstore.Visit, error) {
	if err := s.enter("Due"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var due []taskstore.Visit
	for id, visit := range s.visits {
		number, err := id.Number()
		if err == nil && taskstore.Shard(number) == shard && !time.Now().Before(visit) {
			due = append(due, taskstore.Visit{Task: id, At: visit})
		}
	}
	slices.SortFunc(due, func(a, b taskstore.Visit) int { return a.At.Compare(b.At) })
	return due[:min(limit, len(due))], nil
}

func (s *fakeStore) Undone(_ context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	if err := s.enter("Undone"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil {
		return nil, taskstore.ErrNotFound
	}
	var duties []taskstore.UndoneChunk
	for i, done := range f.done {
		if !done {
			duties = append(duties, taskstore.UndoneChunk{Chunk: i, Sequence: f.seqs[i], Begun: f.begun[i]})
		}
	}
	return duties, nil
}

func (s *fakeStore) Republished(_ context.Context, id procfleet.TaskID, chunk int, sequence uint64) error {
	if err := s.enter("Republished"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.tasks[id].seqs[chunk] = sequence
	return nil
}

func (s *fakeStore) TasksByID(_ context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	if err := s.enter("TasksByID"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	tasks := make([]procfleet.Task, len(ids))
	for i, id := range ids {
		if f := s.tasks[id]; f != nil {
			if f.unreadable {
				return nil, errUnreadable
			}
			tasks[i] = s.view(f)
		}
	}
	return tasks, nil
}

func (s *fakeStore) DeliveredItems(_ context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	if err := s.enter("DeliveredItems"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	delivered := make([][]procfleet.ItemResult, len(tasks))
	for i := range tasks {
		if f := s.tasks[tasks[i].ID]; f != nil && len(f.chunks) == 1 {
			if f.damaged {
				return nil, errUnreadable
			}
			delivered[i] = slices.DeleteFunc(f.items(0), func(r procfleet.ItemResult) bool { return r.State != procfleet.StateDelivered })
		}
	}
	return delivered, nil
}

func (s *fakeStore) Revisit(_ context.Context, next ...taskstore.NextVisit) error {
	if len(next) == 0 {
		return nil
	}
	if err := s.enter("Revisit"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, v := range next {
		if v.Task == s.stuck {
			continue
		}
		s.visits[v.Task] = time.Now().Add(v.After)
	}
	return nil
}

func (s *fakeStore) Settle(_ context.Context, visits ...taskstore.Visit) error {
	if err := s.enter("Settle"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, v := range visits {
		if v.At.IsZero() || v.At.Equal(s.visits[v.Task]) {
			delete(s.visits, v.Task)
		}
	}
	return nil
}

func (s *fakeStore) Published(_ context.Context, id procfleet.TaskID) error {
	if err := s.enter("Published"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.tasks[id].task.State == procfleet.TaskFinished {
		s.tasks[id].task.EventPublished = true
	}
	return nil
}

func (s *fakeStore) Notified(_ context.Context, ids ...procfleet.TaskID) error {
	if err := s.enter("Notified"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.tasks[id].task.State == procfleet.TaskFinished {
			s.tasks[id].task.NotifyPending = false
			delete(s.visits, id)
		}
	}
	return nil
}

func (s *fakeStore) Announce(_ context.Context, as []taskstore.Announcement) error {
	if err := s.enter("Announce"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, a := range as {
		now := time.Now().UTC()
		p := taskstore.Presence{Announcement: a, SeenAt: now, Since: now}
		if old, known := s.presences[a.Host]; known && old.Instance == a.Instance {
			p.Since = old.Since
		}
		s.presences[a.Host] = p
		if a.Leaving {
			delete(s.presences, a.Host)
		}
	}
	return nil
}

// allRegistered returns the registered start commands.
func (s *fakeStore) allRegistered() map[catalog.Process]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[catalog.Process]string)
	for p, spec := range s.registered {
		all[p] = spec.Control.Start
	}
	return all
}

// Register replaces only registrations that were requested earlier.
func (s *fakeStore) Register(_ context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	if err := s.enter("Register"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if !replace {
		return nil, errors.New("the sweep replaces what is older")
	}
	existed := make([][]bool, len(ds))
	for i, d := range ds {
		for _, h := range d.Hosts {
			p := d.Process(h)
			_, there := s.registered[p]
			if existed[i] = append(existed[i], there); !there || s.asked[p].Before(d.Asked) {
				s.registered[p], s.asked[p] = d.Spec, d.Asked
			}
		}
	}
	return existed, nil
}

func (s *fakeStore) Report(_ context.Context, reports []catalog.Report) error {
	if err := s.enter("Report"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, r := range reports {
		if r.Number > s.reports[r.Host].Number {
			s.reports[r.Host] = r
		}
	}
	return nil
}

func (s *fakeStore) EndRegistrations(_ context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	if err := s.enter("EndRegistrations"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	ended := make([]bool, len(ps))
	for i, p := range ps {
		if _, there := s.registered[p]; there && s.asked[p].Equal(asked) {
			delete(s.registered, p)
			ended[i] = true
		}
	}
	return ended, nil
}

func (s *fakeStore) Reported(_ context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
	if err := s.enter("Reported"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return each(hosts, s.reports), nil
}

func (s *fakeStore) FreezesOf(_ context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	if err := s.enter("FreezesOf"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return each(hosts, s.freezes), nil
}

func (s *fakeStore) GroupsOf(_ context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	if err := s.enter("GroupsOf"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return each(hosts, s.groups), nil
}

// each returns the entries of the hosts in order, and the zero value for a missing one.
func each[V any](hosts []procfleet.Host, known map[procfleet.Host]V) []V {
	all := make([]V, len(hosts))
	for i, h := range hosts {
		all[i] = known[h]
	}
	return all
}

// reported returns the last report of a host's agent.
func (s *fakeStore) reported(host procfleet.Host) catalog.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports[host]
}

// present sets the presence of a host's agent.
func (s *fakeStore) present(host procfleet.Host, instance string, edit ...func(*taskstore.Presence)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := taskstore.Presence{
		Announcement: taskstore.Announcement{Host: host, Instance: instance},
		SeenAt:       time.Now(), Since: time.Now().Add(-time.Hour),
	}
	for _, e := range edit {
		e(&p)
	}
	s.presences[host] = p
}

func (s *fakeStore) Presences(_ context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	if s.looking != nil {
		s.looking(hosts)
	}
	if err := s.enter("Presences"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	ps := make([]taskstore.Presence, len(hosts))
	for i, h := range hosts {
		ps[i] = s.presences[h]
	}
	return ps, nil
}

func (s *fakeStore) Claimants(_ context.Context, agentIDs []string) ([][]procfleet.Host, error) {
	if err := s.enter("Claimants"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	claimants := make([][]procfleet.Host, len(agentIDs))
	for i, id := range agentIDs {
		for host, p := range s.presences {
			if id != "" && p.AgentID == id {
				claimants[i] = append(claimants[i], host)
			}
		}
	}
	return claimants, nil
}

func (s *fakeStore) Now(context.Context) (time.Time, error) {
	if err := s.enter("Now"); err != nil {
		return time.Time{}, err
	}
	defer s.mu.Unlock()
	return time.Now().UTC(), nil
}

func (s *fakeStore) remove(id procfleet.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
	delete(s.visits, id)
}

func (s *fakeStore) Policies(_ context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	return make([]catalog.RolloutPolicies, len(namespaces)), nil
}
