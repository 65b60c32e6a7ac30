package boltstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// victimFile is set for the process that is to be killed: the store to write.
const victimFile = "PROCFLEET_TEST_VICTIM_FILE"

// victim writes to the store until it is killed, and writes a line to standard output for each
// confirmed call.
func victim(path string) error {
	s, err := boltstore.Open(path, boltdb.Options{})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for range cap(errs) {
		wg.Go(func() {
			for {
				if err := writeTask(s); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	return <-errs
}

// writeTask takes one task through its life.
func writeTask(s taskstore.Store) error {
	ctx := context.Background()
	task, _, err := s.Create(ctx, storetest.Draft(300))
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "created %s\n", task.ID)
	if rand.IntN(4) == 0 {
		if _, err := s.Reject(ctx, task.ID, "full"); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "rejected %s\n", task.ID)
		return nil
	}
	if _, err := s.Begin(ctx, task.ID, 0, 0); err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "begun %s\n", task.ID)
	for first := 0; first < 300; first += 30 {
		if err := s.Delivered(ctx, task.ID, first/procfleet.ChunkItems, []int{first + 1, first + 2}, false); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "delivered %s %d\n", task.ID, first+1)
		b := taskstore.Batch{Task: task.ID}
		for i := range 30 {
			b.Results = append(b.Results, procfleet.Result{Item: first + i, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent, Message: "success"})
		}
		out, err := s.Record(ctx, []taskstore.Batch{b})
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "recorded %s %d\n", task.ID, first)
		if out[0].Completed {
			fmt.Fprintf(os.Stdout, "completed %s\n", task.ID)
		}
	}
	return nil
}

func TestWhatWasConfirmedSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	var confirmed []string
	rounds := 3
	if testenv.IsLong() {
		rounds = 20
	}
	for range rounds {
		lines := testenv.KilledAfter(t, 1+rand.IntN(250), victimFile+"="+path)
		confirmed = append(confirmed, lines...)
		s := open(t, path, new(atomic.Int64))
		verify(t, s, confirmed)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// verify checks that the store has all that was confirmed, that its counters
// agree with its items and that new tasks come after old ones.
func verify(t *testing.T, s taskstore.Store, confirmed []string) {
	t.Helper()
	tasks := map[procfleet.TaskID]procfleet.Task{}
	items := map[procfleet.TaskID][]procfleet.ItemResult{}
	completed := map[procfleet.TaskID]int{}
	for _, line := range confirmed {
		var what string
		var id procfleet.TaskID
		var first int
		if n, err := fmt.Sscan(line, &what, &id, &first); n < 2 {
			t.Fatalf("line %q: %v", line, err)
		}
		if _, seen := tasks[id]; !seen {
			tasks[id], items[id] = readWhole(t, s, id)
		}
		ok := true
		switch what {
		case "created":
			ok = tasks[id].Items == 300
		case "rejected":
			ok = tasks[id].State == procfleet.TaskRejected
		case "begun":
			ok = tasks[id].State == procfleet.TaskRunning || tasks[id].State == procfleet.TaskFinished
		case "delivered":
			ok = items[id][first].State != procfleet.StatePending
		case "recorded":
			ok = !slices.ContainsFunc(items[id][first:first+30], func(it procfleet.ItemResult) bool {
				return it.State != procfleet.StateSucceeded || it.Result.Message != "success"
			})
		case "completed":
			completed[id]++
			ok = tasks[id].State == procfleet.TaskFinished && tasks[id].NotifyPending && completed[id] == 1
		}
		if !ok {
			t.Errorf("lost: %s; the task is %+v", line, tasks[id])
		}
	}
	next, _, err := s.Create(t.Context(), storetest.Draft(1))
	if err != nil {
		t.Fatal(err)
	}
	for id, task := range tasks {
		if task.Number >= next.Number {
			t.Errorf("number %d of %s is not below the new %d", task.Number, id, next.Number)
		}
	}
}

func readWhole(t *testing.T, s taskstore.Store, id procfleet.TaskID) (procfleet.Task, []procfleet.ItemResult) {
	t.Helper()
	task, err := s.Task(t.Context(), id)
	if err != nil {
		t.Fatalf("confirmed task: %v", err)
	}
	sum := procfleet.Counts{}
	var items []procfleet.ItemResult
	for c := range task.Chunks {
		some, err := s.Chunk(t.Context(), id, c)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, some...)
		for _, it := range some {
			sum[it.State]++
		}
	}
	for _, state := range procfleet.States() {
		if sum[state] != task.Counts[state] {
			t.Errorf("%s: %d items are %s, the counter says %d", id, sum[state], state, task.Counts[state])
		}
	}
	return task, items
}
