package worker_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

// durable is a worker on a real bus with a real store.
type durable struct {
	*env
	bolt *stores.Bolt
}

func startDurable(t *testing.T) *durable {
	t.Helper()
	d := newDurable(t)
	d.run()
	return d
}

// newDurable returns a durable whose worker is not started.
func newDurable(t *testing.T) *durable {
	t.Helper()
	store, err := stores.OpenBolt(filepath.Join(t.TempDir(), "tasks.db"), boltdb.Options{Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &durable{env: &env{NATS: testenv.StartNATS(t), t: t, store: newFakeStore()}, bolt: store}
}

func (d *durable) run() {
	d.t.Helper()
	d.startWorker(func(c *worker.Config) { c.Store = d.bolt })
}

func (d *durable) announce(a *fakeAgent) {
	d.t.Helper()
	err := d.bolt.Announce(d.t.Context(), []taskstore.Announcement{{Host: a.host, Instance: a.instance}})
	if err != nil {
		d.t.Fatal(err)
	}
}

// accepted stores a task and, with publish, publishes its chunks. Without publish the task is as after the
// death of its dispatcher.
func (d *durable) accepted(timeout time.Duration, publish bool, chunks ...procfleet.Chunk) procfleet.TaskID {
	d.t.Helper()
	first := 0
	for i := range chunks {
		chunks[i].First = first
		first += len(chunks[i].Items)
	}
	task, _, err := d.bolt.Create(d.t.Context(), taskstore.Draft{
		Chunks: chunks, Lane: procfleet.LaneSmall, Timeout: timeout, Retention: time.Hour,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	if !publish {
		return task.ID
	}
	refs := make([]bus.ChunkRef, task.Chunks)
	for i := range refs {
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: i, Lane: task.Lane}
	}
	sequences, err := d.Bus.PublishChunks(d.t.Context(), refs, "0")
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.bolt.Dispatched(d.t.Context(), task.ID, sequences); err != nil {
		d.t.Fatal(err)
	}
	return task.ID
}

// delivered stores that agents have accepted items of a task's first chunk.
func (d *durable) delivered(id procfleet.TaskID, items ...int) {
	d.t.Helper()
	if _, err := d.bolt.Begin(d.t.Context(), id, 0, 0); err != nil {
		d.t.Fatal(err)
	}
	if err := d.bolt.Delivered(d.t.Context(), id, 0, items, false); err != nil {
		d.t.Fatal(err)
	}
}

// ended waits until a task is finished and notified, and returns it.
func (d *durable) ended(id procfleet.TaskID) procfleet.Task {
	d.t.Helper()
	var task procfleet.Task
	d.eventually(func() bool {
		var err error
		if task, err = d.bolt.Task(d.t.Context(), id); err != nil {
			d.t.Fatal(err)
		}
		return task.State == procfleet.TaskFinished && !task.NotifyPending
	}, "task is finished and told")
	return task
}

func TestWithADurableStore(t *testing.T) {
	t.Parallel()
	t.Run("a task finishes", func(t *testing.T) {
		t.Parallel()
		d := startDurable(t)
		for _, h := range hosts(3) {
			told := map[int]bool{}
			d.announce(d.agent(h, func(n int, c *agentproto.Command) *agentproto.Reply {
				if item := c.Items[0].Item; !told[item] { // a repeated command may arrive after the end of the test
					told[item] = true
					d.publish(procfleet.TaskID(c.Task), h, succeeded(item))
				}
				return accept(n, c)
			}))
		}
		id := d.accepted(time.Minute, true, chunk(procfleet.ActionStart, hosts(3)...), chunk(procfleet.ActionStatus, hosts(4)...))
		task := d.ended(id)
		if task.Counts[procfleet.StateSucceeded] != 6 || task.Counts[procfleet.StateUnreachable] != 1 {
			t.Errorf("counts are %v", task.Counts)
		}
	})
	t.Run("a task that its dispatcher left is published", func(t *testing.T) {
		t.Parallel()
		d := startDurable(t)
		id := d.accepted(time.Minute, false, chunk(procfleet.ActionStart, host(1)))
		if task := d.ended(id); task.Counts[procfleet.StateUnreachable] != 1 || !task.Dispatched {
			t.Errorf("task is %+v", task)
		}
	})
	t.Run("a host that a rollout has not released says so", func(t *testing.T) {
		t.Parallel()
		d := startDurable(t)
		a, b := chunk(procfleet.ActionStart, host(1)), chunk(procfleet.ActionStart, host(2))
		b.First = 1
		task, _, err := d.bolt.Create(t.Context(), taskstore.Draft{
			Chunks: []procfleet.Chunk{a, b}, Lane: procfleet.LaneSmall, Timeout: 4 * time.Second, Retention: time.Hour,
			Rollout: &procfleet.RolloutPlan{
				Window: 1, Failures: procfleet.AnyFailures, Approval: true, UnitTimeout: time.Minute,
				Stages: []procfleet.RolloutStage{{Units: 1, Chunks: 1}, {Units: 1, Chunks: 2}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Bus.PublishChunks(t.Context(), []bus.ChunkRef{{Task: task.ID, Lane: task.Lane, Advances: true}}, "0"); err != nil {
			t.Fatal(err)
		}
		if err := d.bolt.Dispatched(t.Context(), task.ID, nil); err != nil {
			t.Fatal(err)
		}
		d.ended(task.ID)
		rows, err := d.bolt.Chunk(t.Context(), task.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		if message := rows[0].Result.Message; !strings.Contains(message, "had not released host") || !strings.Contains(message, "(approval)") {
			t.Errorf("the second host ended with %q", message)
		}
	})
	t.Run("an overdue task ends", func(t *testing.T) {
		t.Parallel()
		d := newDurable(t)
		a := d.agent(host(1), accept)
		d.announce(a)
		d.announce(&fakeAgent{host: host(2), instance: "i2"}) // in grace beyond the deadline
		id := d.accepted(2*time.Second, false, chunk(procfleet.ActionStart, hosts(2)...))
		d.delivered(id, 0) // before the deadline, however slow a worker is here
		d.run()
		task := d.ended(id)
		if task.Counts[procfleet.StateTimedOut] != 1 || task.Counts[procfleet.StateUnreachable] != 1 {
			t.Errorf("counts are %v", task.Counts)
		}
		if a.chased() == 0 {
			t.Error("the agent got no last call")
		}
	})
}
