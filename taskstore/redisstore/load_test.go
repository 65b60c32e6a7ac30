package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// load consists of several goroutines that repeatedly create tasks and record all of their results,
// and remember the confirmed calls. They retry failed calls until they succeed, as dispatchers and
// workers do. No call may fail with an error other than ErrUnavailable.
type load struct {
	t     *testing.T
	store atomic.Pointer[taskstore.Store]
	stop  context.CancelFunc
	wg    sync.WaitGroup

	refused atomic.Int64 // calls that were answered with ErrUnavailable

	mu    sync.Mutex
	tasks []*loadedTask // every task whose creation was confirmed
}

// loadedTask contains the confirmed calls for a task.
type loadedTask struct {
	id                 procfleet.TaskID
	done               bool
	applied, completed int
}

// loadItems is in two chunks and in two blocks of results.
const loadItems = 1100

func startLoad(t *testing.T, s taskstore.Store) *load {
	t.Helper()
	const goroutines = 4
	ctx, stop := context.WithCancel(t.Context())
	l := &load{t: t, stop: stop}
	l.use(s)
	for n := range goroutines {
		l.wg.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				l.one(fmt.Sprintf("%d-%d", n, round))
			}
		})
	}
	t.Cleanup(func() { stop(); l.wg.Wait() })
	return l
}

// use makes all further calls use another store with the same data.
func (l *load) use(s taskstore.Store) { l.store.Store(&s) }

// persist makes a call until it succeeds.
func (l *load) persist(what string, call func(ctx context.Context, s taskstore.Store) error) bool {
	for until := time.Now().Add(5 * time.Minute); ; { // a Sentinel may be suspended meanwhile
		err := call(l.t.Context(), *l.store.Load())
		if err == nil {
			return true
		}
		if !errors.Is(err, taskstore.ErrUnavailable) || time.Now().After(until) {
			l.t.Errorf("%s: %v", what, err)
			return false
		}
		l.refused.Add(1)
	}
}

// one creates a task and records its results until it has ended.
func (l *load) one(key string) {
	d := storetest.Draft(loadItems)
	d.IdempotencyKey, d.BodyHash = key, key
	task := &loadedTask{}
	if !l.persist("create", func(ctx context.Context, s taskstore.Store) error {
		made, _, err := s.Create(ctx, d)
		task.id = made.ID
		return err
	}) {
		return
	}
	l.mu.Lock()
	l.tasks = append(l.tasks, task)
	l.mu.Unlock()
	for chunk := range d.Chunks {
		first, n := d.Chunks[chunk].First, len(d.Chunks[chunk].Items)
		ok := l.persist("begin", func(ctx context.Context, s taskstore.Store) error {
			b, err := s.Begin(ctx, task.id, chunk, 0)
			if err == nil && b.Gate != taskstore.GateOpen {
				err = fmt.Errorf("the gate of chunk %d of %s, which is open, is %s", chunk, task.id, b.Gate)
			}
			return err
		}) && l.persist("delivered", func(ctx context.Context, s taskstore.Store) error {
			return s.Delivered(ctx, task.id, chunk, []int{first, first + n - 1}, false)
		}) && l.record(task, agentResults(first, first+n/2)) && l.record(task, agentResults(first, first+n)) &&
			l.persist("query", func(ctx context.Context, s taskstore.Store) error {
				_, _, err := s.Results(ctx, task.id, taskstore.ResultQuery{State: procfleet.StateSucceeded, Limit: 10})
				return err
			})
		if !ok {
			return
		}
	}
	task.done = true
}

func (l *load) record(task *loadedTask, rs []procfleet.Result) bool {
	return l.persist("record", func(ctx context.Context, s taskstore.Store) error {
		out, err := s.Record(ctx, []taskstore.Batch{{Task: task.id, Results: rs}})
		if err != nil {
			return err
		}
		if !out[0].Known {
			return fmt.Errorf("task %s, which was confirmed, is not known", task.id)
		}
		task.applied += out[0].Applied
		if out[0].Completed {
			task.completed++
		}
		return nil
	})
}

// confirmed returns the number of created tasks.
func (l *load) confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tasks)
}

// more waits until n further tasks were created.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	before := l.confirmed()
	testenv.Eventually(t, time.Minute, func() bool { return l.confirmed() >= before+n }, "the load goes on")
}

// end stops the load when every goroutine is through with its task.
func (l *load) end() []*loadedTask {
	l.stop()
	l.wg.Wait()
	return l.tasks
}

// audit compares the confirmed calls with the contents of the store. If a reply was lost, the repeated
// call has applied nothing, so the counts may differ; exact means that no reply was lost.
func (l *load) audit(t *testing.T, s taskstore.Store, exact bool) {
	t.Helper()
	tasks := l.end()
	listed := make(map[procfleet.TaskID]int)
	for before := procfleet.Number(0); ; {
		page, err := s.Tasks(t.Context(), taskstore.TaskQuery{Before: before, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for i := range page {
			listed[page[i].ID]++
			before = page[i].Number
		}
		if len(page) < 1000 {
			break
		}
	}
	due := l.due(t, s, tasks)
	for _, told := range tasks {
		if !told.done {
			continue // the failure was reported where it occurred
		}
		got, err := s.Task(t.Context(), told.id)
		if err != nil {
			t.Errorf("task %s, which was confirmed: %v", told.id, err)
			continue
		}
		if got.State != procfleet.TaskFinished || got.Counts[procfleet.StateSucceeded] != loadItems || got.Counts.Total() != loadItems || !got.NotifyPending {
			t.Errorf("every result of task %s was confirmed, and it is %+v", told.id, got)
		}
		if exact && (told.applied != loadItems || told.completed != 1) {
			t.Errorf("task %s: %d of %d results applied, completed %d times", told.id, told.applied, loadItems, told.completed)
		}
		if told.completed > 1 {
			t.Errorf("task %s was completed %d times", told.id, told.completed)
		}
		if listed[told.id] != 1 || !due[told.id] {
			t.Errorf("task %s is listed %d times; visit due: %v", told.id, listed[told.id], due[told.id])
		}
		for chunk := range got.Chunks {
			items, err := s.Chunk(t.Context(), told.id, chunk)
			if err != nil {
				t.Errorf("chunk %d of task %s: %v", chunk, told.id, err)
			}
			for i := range items {
				if items[i].State != procfleet.StateSucceeded {
					t.Errorf("item %d of task %s is %s", items[i].Index, told.id, items[i].State)
				}
			}
		}
	}
	t.Logf("%d tasks; %d calls were refused", len(tasks), l.refused.Load())
}

// due makes the visit of every task due now, and returns the tasks whose visit is due.
func (l *load) due(t *testing.T, s taskstore.Store, tasks []*loadedTask) map[procfleet.TaskID]bool {
	t.Helper()
	for _, task := range tasks {
		if err := s.Revisit(t.Context(), taskstore.NextVisit{Task: task.id, After: -time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	due := make(map[procfleet.TaskID]bool)
	for shard := range taskstore.SweepShards {
		visits, err := s.Due(t.Context(), shard, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range visits {
			due[v.Task] = true
		}
	}
	return due
}

// some returns up to n of the youngest tasks.
func (l *load) some(n int) []procfleet.TaskID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []procfleet.TaskID
	for _, task := range l.tasks[max(0, len(l.tasks)-n):] {
		ids = append(ids, task.id)
	}
	return ids
}
