package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

func submission(t *testing.T, action procfleet.Action, hosts int) procfleet.Submission {
	t.Helper()
	o := procfleet.Operation{Action: action, Process: spec("web")}
	for i := range hosts {
		o.Targets = append(o.Targets, procfleet.Target{Host: host(t, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))})
	}
	return procfleet.Submission{Operations: []procfleet.Operation{o}, Dialect: "test", Application: "app"}
}

func testSubmitter(t *testing.T, store Store, queue Queue) *submitter {
	t.Helper()
	return newSubmitter(store, queue, testConfig(t).WithDefaults())
}

func TestAcceptedMeansStoredQueuedAndNoted(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	s := testSubmitter(t, store, queue)
	task, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 600), terms{})
	if err != nil {
		t.Fatal(err)
	}
	s.marks.wait()
	stored, err := store.Task(t.Context(), task.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !stored.Dispatched || stored.State != procfleet.TaskAccepted || stored.Items != 600 {
		t.Errorf("stored task is %+v", stored)
	}
	if stored.Lane == procfleet.LaneSmall {
		t.Error("600 items travel in the lane for small tasks")
	}
	refs := queue.rounds()[0]
	if len(refs) != stored.Chunks {
		t.Fatalf("%d chunks queued, %d stored", len(refs), stored.Chunks)
	}
	for i, ref := range refs {
		if want := (bus.ChunkRef{Task: task.ID, Chunk: i, Lane: stored.Lane}); ref != want {
			t.Errorf("chunk %d queued as %+v, want %+v", i, ref, want)
		}
	}
}

func TestWhatCannotBeQueuedIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"full": bus.ErrFull, "away": bus.ErrUnavailable, "other": errors.New("unheard of")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, queue := openStore(t), &fakeQueue{err: cause}
			_, err := testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
			if !errors.Is(err, cause) {
				t.Fatalf("answered %v, want %v", err, cause)
			}
			onlyTask(t, store, procfleet.TaskRejected)
		})
	}
}

func onlyTask(t *testing.T, store taskstore.Queries, want procfleet.TaskState) procfleet.Task {
	t.Helper()
	tasks, err := store.Tasks(t.Context(), taskstore.TaskQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) != 1 || tasks[0].State != want {
		t.Fatalf("tasks are %+v, want one that is %s", tasks, want)
	}
	return tasks[0]
}

func TestANoteThatFailsTakesTheTaskBackAsWell(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), dispatched: taskstore.ErrUnavailable}
	_, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{key: "key"})
	if !errors.Is(err, errNotQueued) {
		t.Fatalf("answered %v", err)
	}
	onlyTask(t, store, procfleet.TaskRejected)
}

func TestWithoutAKeyANoteThatFailsIsLeftToTheSweep(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), dispatched: taskstore.ErrUnavailable}
	s := testSubmitter(t, store, &fakeQueue{})
	task, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if err != nil {
		t.Fatal(err)
	}
	s.marks.wait()
	if got := onlyTask(t, store, procfleet.TaskAccepted); got.ID != task.ID {
		t.Errorf("answered %s, stored is %s", task.ID, got.ID)
	}
}

func TestAStoreThatIsSlowToNoteIsWaitedFor(t *testing.T) {
	t.Parallel()
	slow := &slowNotes{Store: openStore(t), open: make(chan struct{})}
	s := testSubmitter(t, slow, &fakeQueue{})
	for range marksAtOnce {
		if _, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{}); err != nil {
			t.Fatal(err)
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
		answered <- err
	}()
	testenv.Eventually(t, patience, func() bool { return slow.waiting.Load() == marksAtOnce+1 }, "all marks wait")
	select {
	case err := <-answered:
		t.Errorf("answered %v before the note was made, though as many as may be were under way", err)
	default:
	}
	close(slow.open)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	s.marks.wait()
}

func TestATaskThatWasBegunIsAcceptedWhateverFailed(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	queue := &fakeQueue{err: bus.ErrUnavailable}
	queue.onPublish = func() { // a worker is faster than the acknowledgement that got lost
		if _, err := store.Begin(t.Context(), onlyTask(t, store, procfleet.TaskAccepted).ID, 0, 0); err != nil {
			t.Error(err)
		}
	}
	task, err := testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if err != nil {
		t.Fatalf("answered %v", err)
	}
	if got := onlyTask(t, store, procfleet.TaskRunning); got.ID != task.ID {
		t.Errorf("answered %s, the running task is %s", task.ID, got.ID)
	}
}

func TestWhenNothingIsSureTheAnswerSaysSoWithTheID(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), reject: taskstore.ErrUnavailable}
	_, err := testSubmitter(t, store, &fakeQueue{err: bus.ErrUnavailable}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	unknown, ok := errors.AsType[*OutcomeUnknownError](err)
	if !ok {
		t.Fatalf("answered %v", err)
	}
	if task := onlyTask(t, store, procfleet.TaskAccepted); unknown.Task != task.ID {
		t.Errorf("the answer names %q, the task is %s", unknown.Task, task.ID)
	}
}

func TestAStoreThatFailedBeforeItHadTheTaskDidNothing(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), create: taskstore.ErrUnavailable}
	for _, key := range []string{"", "key"} {
		_, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{key: key})
		f := failure(err)
		if f.Kind != dialect.Unavailable || f.RetryAfter == 0 || !strings.Contains(f.Problem, "nothing was done") {
			t.Errorf("key %q: answered %+v", key, f)
		}
	}
}

// unconfirmed is a store that creates a task and returns an error, as if the reply were lost.
type unconfirmed struct {
	Store
	begin func(context.Context, procfleet.TaskID, int, int) (taskstore.Begun, error) // of a worker that is faster; nil without
}

func (s *unconfirmed) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	task, _, err := s.Store.Create(ctx, d)
	if s.begin != nil && err == nil {
		_, err = s.begin(ctx, task.ID, 0, 0)
	}
	return task, false, errors.Join(taskstore.ErrUnavailable, err)
}

func TestATaskThatTheStoreDidNotConfirmIsRejected(t *testing.T) {
	t.Parallel()
	store := &unconfirmed{Store: openStore(t)}
	_, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if f := failure(err); f.Kind != dialect.Unavailable || !strings.Contains(f.Problem, "nothing was done") {
		t.Errorf("answered %+v", f)
	}
	onlyTask(t, store, procfleet.TaskRejected)
}

func TestATaskThatTheStoreDidNotConfirmIsAcceptedOnceItWasBegun(t *testing.T) {
	t.Parallel()
	bolt := openStore(t)
	store := &unconfirmed{Store: bolt, begin: bolt.Begin}
	task, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if got := onlyTask(t, store, procfleet.TaskRunning); err != nil || got.ID != task.ID || task.Items != 1 {
		t.Errorf("answered task %s with %d items, %v; stored is %s", task.ID, task.Items, err, got.ID)
	}
}

func TestATaskThatIsNeitherConfirmedNorRejectedIsNamed(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: &unconfirmed{Store: openStore(t)}, reject: taskstore.ErrUnavailable}
	_, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{key: "key"})
	task := onlyTask(t, store, procfleet.TaskAccepted)
	if f := failure(err); f.Kind != dialect.OutcomeUnknown || f.Task != task.ID || f.RetryAfter == 0 {
		t.Errorf("answered %+v, stored is %s", f, task.ID)
	}
}

func TestARepeatIsTheSameTask(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	first, err := testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStart, 3), terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStart, 3), terms{key: "key"})
	if err != nil || again.ID != first.ID {
		t.Errorf("the repeat is task %s, %v; the first was %s", again.ID, err, first.ID)
	}
	if n := len(queue.rounds()); n != 1 {
		t.Errorf("queued %d times", n)
	}
	_, err = testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStop, 3), terms{key: "key"})
	if !errors.Is(err, taskstore.ErrConflict) {
		t.Errorf("another request under the key: %v", err)
	}
	other := submission(t, procfleet.ActionStop, 3)
	other.Application = "other"
	if task, err := testSubmitter(t, store, queue).submit(t.Context(), other, terms{key: "key"}); err != nil || task.ID == first.ID {
		t.Errorf("another application's key: task %s, %v", task.ID, err)
	}
}

func TestARepeatQueuesWhatADeadDispatcherLeft(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	sub := submission(t, procfleet.ActionStart, 300)
	sub.Operations[0].Targets[299].Host = host(t, "7:10.9.9.9")
	dead := testSubmitter(t, store, queue)
	draft, err := dead.draft(t.Context(), sub, terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := store.Create(t.Context(), draft.Draft)
	if err != nil {
		t.Fatal(err)
	}
	task, err := testSubmitter(t, store, queue).submit(t.Context(), sub, terms{key: "key"})
	if err != nil || task.ID != left.ID {
		t.Fatalf("the repeat is task %s, %v; want %s", task.ID, err, left.ID)
	}
	refs := queue.rounds()[0]
	if len(refs) != len(draft.Chunks) {
		t.Fatalf("%d chunks queued, want %d", len(refs), len(draft.Chunks))
	}
	for i, ref := range refs {
		if want := chunkRefs(left.ID, draft)[i]; ref != want {
			t.Errorf("chunk %d queued as %+v, want %+v", i, ref, want)
		}
	}
	if stored, err := store.Task(t.Context(), left.ID); err != nil || !stored.Dispatched {
		t.Errorf("after the repeat: %+v, %v", stored, err)
	}
}

func TestARepeatTakesNothingBack(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{err: bus.ErrUnavailable}
	sub := submission(t, procfleet.ActionStart, 1)
	s := testSubmitter(t, store, queue)
	draft, err := s.draft(t.Context(), sub, terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := store.Create(t.Context(), draft.Draft)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.submit(t.Context(), sub, terms{key: "key"})
	if unknown, ok := errors.AsType[*OutcomeUnknownError](err); !ok || unknown.Task != left.ID {
		t.Errorf("answered %v", err)
	}
	onlyTask(t, store, procfleet.TaskAccepted)
}

// A repeat at another dispatcher succeeds while the first dispatcher still tries to queue the task.
// When the first dispatcher gives up, it must not reject the task of the successful repeat.
func TestAGivenUpAcceptanceDoesNotTakeARepeatsTaskBack(t *testing.T) {
	t.Parallel()
	store, sub := openStore(t), submission(t, procfleet.ActionStart, 1)
	var repeated procfleet.Task
	slow := &fakeQueue{err: bus.ErrUnavailable}
	slow.onPublish = func() {
		var err error
		if repeated, err = testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), sub, terms{key: "key"}); err != nil {
			t.Errorf("the repeat: %v", err)
		}
	}
	task, err := testSubmitter(t, store, slow).submit(t.Context(), sub, terms{key: "key"})
	if err != nil || task.ID != repeated.ID {
		t.Errorf("the first dispatcher answers %s, %v; the repeat was answered %s", task.ID, err, repeated.ID)
	}
	onlyTask(t, store, procfleet.TaskAccepted)
}

// If the first dispatcher rejects a task after a repeat has found it and before the repeat has queued
// it, the repeat creates a new task.
func TestARepeatOutlivesTheTaskThatItFound(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	sub := submission(t, procfleet.ActionStart, 1)
	s := testSubmitter(t, store, queue)
	draft, err := s.draft(t.Context(), sub, terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := store.Create(t.Context(), draft.Draft)
	if err != nil {
		t.Fatal(err)
	}
	queue.onPublish = func() {
		if _, err := store.Reject(t.Context(), left.ID, "the queue was slow"); err != nil {
			t.Error(err)
		}
	}
	task, err := s.submit(t.Context(), sub, terms{key: "key"})
	if err != nil || task.ID == left.ID {
		t.Fatalf("the repeat is task %s, %v; want another than the withdrawn %s", task.ID, err, left.ID)
	}
	if stored, err := store.Task(t.Context(), task.ID); err != nil || !stored.Dispatched || stored.State != procfleet.TaskAccepted {
		t.Errorf("the new task is %+v, %v", stored, err)
	}
}

func TestAcceptanceGoesOnWhenTheCallerGoesAway(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	ctx, hangUp := context.WithCancel(t.Context())
	queue.onPublish = hangUp
	s := testSubmitter(t, store, queue)
	task, err := s.submit(ctx, submission(t, procfleet.ActionStart, 1), terms{})
	if err != nil {
		t.Fatal(err)
	}
	s.marks.wait()
	if stored, err := store.Task(t.Context(), task.ID); err != nil || !stored.Dispatched {
		t.Errorf("the task is %+v, %v", stored, err)
	}
	if _, err := testSubmitter(t, store, queue).submit(ctx, submission(t, procfleet.ActionStart, 1), terms{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who had gone before: %v", err)
	}
}

func TestAgentsBecomeHostsAtAcceptance(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	err := store.Announce(t.Context(), []taskstore.Announcement{{Host: host(t, "4:10.0.0.1"), AgentID: "known", Instance: "i"}})
	if err != nil {
		t.Fatal(err)
	}
	sub := submission(t, procfleet.ActionStart, 1)
	sub.Operations[0].Targets = []procfleet.Target{{AgentID: "known", Label: "known"}, {AgentID: "unknown", Label: "unknown"}}
	task, err := testSubmitter(t, store, queue).submit(t.Context(), sub, terms{})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"4:10.0.0.1", ""} {
		items, err := store.Chunk(t.Context(), task.ID, n)
		if err != nil || len(items) != 1 || items[0].Item.Target.Host.String() != want {
			t.Errorf("chunk %d is %+v, %v; want host %q", n, items, err, want)
		}
	}
}

func TestBigTasksTakeTurnsInTheLanes(t *testing.T) {
	t.Parallel()
	queue := &fakeQueue{}
	s := testSubmitter(t, openStore(t), queue)
	for _, failing := range []error{nil, bus.ErrUnavailable} {
		queue.fail(failing)
		lanes := make(map[procfleet.Lane]bool)
		for range procfleet.BigLanes {
			lanes[s.lane(t.Context(), procfleet.SmallTask+1)] = true
		}
		if len(lanes) != procfleet.BigLanes || lanes[procfleet.LaneSmall] {
			t.Errorf("with %v, %d big tasks in a row travel in %v", failing, procfleet.BigLanes, lanes)
		}
		if got := s.lane(t.Context(), procfleet.SmallTask); got != procfleet.LaneSmall {
			t.Errorf("with %v, a task of %d items travels in lane %s", failing, procfleet.SmallTask, got)
		}
	}
}
