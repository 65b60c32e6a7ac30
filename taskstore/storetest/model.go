package storetest

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func modelChecks() []Check {
	return []Check{{Name: "any order of calls does what a plain model does", Fn: agreesWithModel, Heavy: true}}
}

// modelItems is the number of items of a model: one full chunk and one of four items.
const modelItems = procfleet.ChunkItems + 4

// model is a reference implementation of the contract for one task.
type model struct {
	task    procfleet.Task
	states  []procfleet.State
	results []procfleet.Result
	begun   []bool
	done    []bool
	cancels []map[int]bool // items with a cancel that was not carried out, by chunk
	visited bool           // Begin or Record touched the task, so that Reject must fail
}

func newModel(task procfleet.Task) *model {
	m := &model{
		task: task, states: make([]procfleet.State, task.Items), results: make([]procfleet.Result, task.Items),
		begun: make([]bool, task.Chunks), done: make([]bool, task.Chunks), cancels: make([]map[int]bool, task.Chunks),
	}
	for i := range m.states {
		m.states[i] = procfleet.StatePending
	}
	return m
}

func (m *model) rejected() bool { return m.task.State == procfleet.TaskRejected }

// move sets the state of an item and updates the counters.
func (m *model) move(item int, state procfleet.State) {
	m.task.Counts[m.states[item]]--
	m.task.Counts[state]++
	m.states[item] = state
}

func (m *model) chunkOpen(chunk int) bool {
	last := min((chunk+1)*procfleet.ChunkItems, m.task.Items)
	for _, s := range m.states[chunk*procfleet.ChunkItems : last] {
		if !s.Final() {
			return true
		}
	}
	return false
}

func (m *model) begin(chunk int) taskstore.Gate {
	switch {
	case m.rejected():
		return taskstore.GateRejected
	case m.done[chunk], !m.chunkOpen(chunk):
		return taskstore.GateFinished
	case m.task.Held():
		return taskstore.GateHeld
	case m.task.Canceled():
		return taskstore.GateCanceled
	}
	m.begun[chunk], m.visited, m.task.State = true, true, procfleet.TaskRunning
	return taskstore.GateOpen
}

func (m *model) deliver(chunk int, items []int, done bool) {
	if m.rejected() {
		return
	}
	for _, i := range items {
		if i/procfleet.ChunkItems == chunk && m.states[i] == procfleet.StatePending {
			m.move(i, procfleet.StateDelivered)
		}
	}
	m.done[chunk] = m.done[chunk] || done
}

func (m *model) record(rs []procfleet.Result) taskstore.Recorded {
	out := taskstore.Recorded{Known: true}
	if m.rejected() {
		return out
	}
	open := m.task.Counts.Open()
	for _, r := range rs {
		old := m.results[r.Item]
		if r.Rank <= old.Rank || old.Reason == procfleet.ReasonCancelled {
			continue
		}
		r.Late = old.Reason != ""
		m.results[r.Item] = r
		m.move(r.Item, r.State())
		out.Applied++
	}
	if open > 0 && m.task.Counts.Open() == 0 {
		m.task.State, m.task.NotifyPending, out.Completed = procfleet.TaskFinished, true, true
		m.task.Hold = procfleet.Hold{}
	}
	m.visited = m.visited || out.Applied > 0
	return out
}

func (m *model) reject(reason string) bool {
	if m.rejected() || m.visited {
		return m.rejected()
	}
	m.task.State, m.task.RejectReason, m.task.Hold = procfleet.TaskRejected, reason, procfleet.Hold{}
	for i := range m.states {
		m.move(i, procfleet.StateRejected)
	}
	return true
}

// agreesWithModel makes the same random calls to the store and to the model. It compares
// the returned values and the resulting states.
func agreesWithModel(ctx context.Context, t T, s Subject) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range s.rounds(3, 12) { // each kind of round at least once
		m := newModel(create(ctx, t, s, Draft(modelItems)))
		// Use only a few items, so that calls often affect the same item.
		few := []int{0, 1, 255, 256, 257, 258, 259}
		switch round % 3 {
		case 0: // all items outside few have results, so that the task can finish
			var rest []procfleet.Result
			for i := 2; i < 255; i++ {
				rest = append(rest, agentResult(i, procfleet.ReasonSucceeded))
			}
			equal(t, "result of the others", record(ctx, t, s, m.task.ID, rest...), m.record(rest))
		case 1:
			equal(t, "rejected", reject(ctx, t, s, m.task.ID, "full"), m.reject("full"))
		}
		for range 60 {
			if !step(ctx, t, s, m, random, few) {
				t.Fatalf("failing seed: %d", seed)
			}
		}
		if !agree(ctx, t, s, m) {
			t.Fatalf("failing seed: %d", seed)
		}
	}
}

func step(ctx context.Context, t T, s Subject, m *model, random *rand.Rand, few []int) bool {
	t.Helper()
	id, chunk := m.task.ID, random.IntN(2)
	some := func() []int {
		var items []int
		for range random.IntN(4) {
			items = append(items, few[random.IntN(len(few))])
		}
		return items
	}
	switch random.IntN(14) {
	case 0, 1:
		return equal(t, "gate", begin(ctx, t, s, id, chunk).Gate, m.begin(chunk))
	case 2, 3:
		items, done := some(), random.IntN(10) == 0
		if !m.begun[chunk] {
			break // workers call Delivered only after Begin
		}
		must(t, s.Delivered(ctx, id, chunk, items, done), "delivered")
		m.deliver(chunk, items, done)
	case 4:
		return equal(t, "rejected", reject(ctx, t, s, id, "full"), m.reject("full"))
	case 5:
		must(t, s.Notified(ctx, id), "notified")
		m.task.NotifyPending = false
	case 6, 7:
		return controlRandomly(ctx, t, s, m, random)
	default:
		rs := randomResults(random, some())
		want := m.record(rs)
		got := record(ctx, t, s, id, rs...)
		got.Known = got.Known || m.rejected() // for a rejected task the contract allows both values
		return equal(t, "recorded", got, want)
	}
	return true
}

// cancel cancels the items of chunks that were never begun.
func (m *model) cancel(c procfleet.Cancel) {
	for chunk := range m.begun {
		if m.begun[chunk] {
			m.done[chunk] = false
			continue
		}
		for i := chunk * procfleet.ChunkItems; i < min((chunk+1)*procfleet.ChunkItems, len(m.states)); i++ {
			if m.states[i] == procfleet.StatePending {
				m.results[i] = procfleet.Result{
					Item: i, Code: procfleet.CodeFailed, Reason: procfleet.ReasonCancelled, Rank: procfleet.RankServer,
					Message: "canceled before it was sent to the agent", FinishedAt: c.Since,
				}
				m.move(i, procfleet.StateCancelled)
			}
		}
	}
	m.visited, m.task.State, m.task.Hold = true, procfleet.TaskRunning, procfleet.Hold{}
	m.task.ItemCancels, m.cancels = 0, make([]map[int]bool, m.task.Chunks)
	if m.task.Counts.Open() == 0 {
		m.task.State, m.task.NotifyPending = procfleet.TaskFinished, true
	}
}

// cancelRandomly cancels the task.
func cancelRandomly(ctx context.Context, t T, s Subject, m *model) bool {
	t.Helper()
	got, err := s.Cancel(ctx, m.task.ID, procfleet.CancelDrain, "", taskstore.AnySeq)
	if m.task.State.Done() {
		return equal(t, "cancel of a task that has ended", errors.Is(err, taskstore.ErrDone), true)
	}
	must(t, err, "cancel")
	if !m.task.Canceled() {
		m.cancel(got.Cancel)
		m.task.Seq++
		m.task.Transitions++
		m.task.Deadline, m.task.Cancel = got.Deadline, got.Cancel
	}
	return equal(t, "canceled", got.Canceled(), true)
}

// cancelItemRandomly cancels one item, or records that the cancels of its chunk were carried out.
func cancelItemRandomly(ctx context.Context, t T, s Subject, m *model, random *rand.Rand) bool {
	t.Helper()
	chunk := random.IntN(m.task.Chunks)
	if random.IntN(3) == 0 {
		must(t, s.ItemsCanceled(ctx, m.task.ID, chunk, m.task.Seq), "items canceled")
		if len(m.cancels[chunk]) > 0 {
			m.cancels[chunk] = nil
			m.task.ItemCancels--
		}
		return true
	}
	at := random.IntN(2)
	items := []taskstore.ChunkItems{{Chunk: chunk, Items: []int{at}}}
	got, err := s.CancelItems(ctx, m.task.ID, items, procfleet.CancelDrain, "", taskstore.AnySeq)
	if m.task.State.Done() {
		return equal(t, "cancel of an item of a task that has ended", errors.Is(err, taskstore.ErrDone), true)
	}
	must(t, err, "cancel of an item")
	if item := chunk*procfleet.ChunkItems + at; !m.task.Canceled() && !m.states[item].Final() && !m.cancels[chunk][at] {
		if len(m.cancels[chunk]) == 0 {
			m.cancels[chunk] = map[int]bool{}
			m.task.ItemCancels++
		}
		m.cancels[chunk][at] = true
		m.task.Seq++
		m.task.Transitions++
	}
	return equal(t, "seq after a cancel of an item", got.Seq, m.task.Seq)
}

// controlRandomly pauses or resumes the task, cancels an item, and rarely cancels the task.
func controlRandomly(ctx context.Context, t T, s Subject, m *model, random *rand.Rand) bool {
	t.Helper()
	if random.IntN(10) == 0 {
		return cancelRandomly(ctx, t, s, m)
	}
	if random.IntN(3) == 0 {
		return cancelItemRandomly(ctx, t, s, m, random)
	}
	call := func() (procfleet.Task, error) { return s.Resume(ctx, m.task.ID, taskstore.AnySeq) }
	pauses := random.IntN(2) == 0
	if pauses {
		call = func() (procfleet.Task, error) { return s.Pause(ctx, m.task.ID, "", taskstore.AnySeq) }
	}
	got, err := call()
	if m.task.State.Done() {
		return equal(t, "control of a task that has ended", errors.Is(err, taskstore.ErrDone), true)
	}
	must(t, err, "control")
	if pauses != m.task.Held() {
		m.task.Seq++
		m.task.Transitions++
	}
	if !pauses && m.task.Held() {
		m.task.Deadline = got.Deadline
	}
	m.task.Hold = got.Hold
	return equal(t, "held", got.Held(), pauses)
}

func randomResults(random *rand.Rand, items []int) []procfleet.Result {
	agents := []procfleet.Reason{procfleet.ReasonSucceeded, procfleet.ReasonNotRunning, procfleet.ReasonCommandFailed, procfleet.ReasonRefused}
	servers := []procfleet.Reason{procfleet.ReasonUnreachable, procfleet.ReasonTimedOut, procfleet.ReasonRefused, procfleet.ReasonCancelled}
	var rs []procfleet.Result
	for _, i := range items {
		if random.IntN(2) == 0 {
			rs = append(rs, agentResult(i, agents[random.IntN(len(agents))]))
		} else {
			rs = append(rs, serverResult(i, servers[random.IntN(len(servers))]))
		}
	}
	return rs
}

// agree compares all readable data of the task with the model and reports whether both
// are equal.
func agree(ctx context.Context, t T, s Subject, m *model) bool {
	t.Helper()
	got := look(ctx, t, s, m.task.ID)
	if got.State.Done() == got.FinishedAt.IsZero() {
		t.Errorf("a task that is %s ended at %v", got.State, got.FinishedAt)
	}
	m.task.FinishedAt = got.FinishedAt
	if m.task.State == procfleet.TaskAccepted && m.visited && got.State == procfleet.TaskRunning {
		m.task.State = got.State // a task with a result but no Begin may be accepted or running
	}
	same := equal(t, "task", got, m.task)
	for i, it := range items(ctx, t, s, got) {
		if !same {
			break
		}
		same = equal(t, "state of an item", it.State, m.states[i])
		if same && !m.rejected() {
			same = equal(t, "result of an item", it.Result, m.results[i])
		}
	}
	if same {
		audit(ctx, t, s, got.ID)
	}
	return same
}
