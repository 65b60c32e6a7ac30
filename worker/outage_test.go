package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/worker"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/deliver"
	"github.com/procfleet/procfleet/worker/notify"
)

// startRestartable is like start, with a broker that down stops and up starts again.
func startRestartable(t *testing.T, edit ...func(*worker.Config)) (e *env, down, up func()) {
	t.Helper()
	cfg := natsembed.Config{StoreDir: t.TempDir(), Listen: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), MaxStore: 1 << 30, Log: testenv.Log(t)}
	var server *natsembed.Server
	up = func() {
		t.Helper()
		var err error
		if server, err = natsembed.Start(cfg); err != nil {
			t.Fatalf("start NATS: %v", err)
		}
	}
	down = func() { server.Shutdown() }
	up()
	t.Cleanup(func() { server.Shutdown() })
	n := &testenv.NATS{URL: server.ClientURL()}
	n.Conn = testenv.Connect(t, n.URL)
	var err error
	if n.JS, err = bus.JetStream(n.Conn); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), n.JS, bus.Options{AckWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	n.Bus = bus.New(n.JS)
	e = &env{NATS: n, t: t, store: newFakeStore()}
	e.worker, e.stop = e.startWorker(edit...)
	return e, down, up
}

// A restart of the broker disconnects all agents. No host may end as unreachable because of it, not even
// a host whose presence expired.
func TestABrokerRestartFailsNoHost(t *testing.T) {
	t.Parallel()
	e, down, up := startRestartable(t, func(c *worker.Config) { c.Timing.Deliver.ReconnectGrace = 30 * time.Second })
	silentOne := e.agent(host(1), silent)
	e.store.present(host(2), "i2")
	before := e.submit(time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.eventually(func() bool { return silentOne.asked() > 0 && e.store.called("Presences") > 2 }, "both hosts are asked")
	down()
	e.eventually(func() bool { return !e.worker.Ready() }, "worker sees that the bus is away")
	calls := e.store.called("Presences")
	e.eventually(func() bool { return e.store.called("Presences") > calls+8 }, "worker waits for longer than it would for a silent host")
	up()
	e.eventually(e.worker.Ready, "worker is connected again")
	late := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(3)))
	e.eventually(func() bool {
		_, err := e.Bus.PublishChunks(t.Context(), []bus.ChunkRef{{Task: late.ID, Lane: procfleet.LaneSmall}}, "0")
		return err == nil
	}, "chunk is queued")
	for item, id := range map[int]procfleet.TaskID{0: before, 1: before} {
		if state := e.state(id, item); state != procfleet.StatePending {
			t.Errorf("item %d is %s", item, state)
		}
	}
	silentOne.mu.Lock()
	silentOne.reply = accept
	silentOne.mu.Unlock()
	for n := 2; n <= 3; n++ { // agents reconnect later than the worker
		(&fakeAgent{t: t, conn: e.Conn, host: host(n), reply: accept}).listen()
	}
	e.waitState(before, 0, procfleet.StateDelivered)
	e.waitState(before, 1, procfleet.StateDelivered)
	e.waitState(late.ID, 0, procfleet.StateDelivered)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "chunks are done")
}

// If a worker dies at any point, another worker finishes the task: every item has its agent's result, and
// the completion is notified.
func TestAnotherWorkerFinishesWhatADeadOneLeft(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		deliver.PointBegun, deliver.PointRequested, deliver.PointBeforeDone, deliver.PointAfterDone,
		collect.PointCollecting, collect.PointCollected, notify.PointBeforeNotify,
	} {
		t.Run("dead at "+point, func(t *testing.T) {
			t.Parallel()
			e, _, _ := startRestartable(t)
			e.stop()
			died := make(chan struct{})
			e.mortal(point, died)
			id := e.honestTask(3)
			select {
			case <-died:
			case <-time.After(patience):
				t.Fatal("point not reached")
			}
			e.startWorker()
			for item := range 3 {
				if r := e.waitState(id, item, procfleet.StateSucceeded); r.Late {
					t.Errorf("item %d was given up meanwhile", item)
				}
			}
			e.eventually(func() bool { return e.store.settled(id) }, "the end is told")
			e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "nothing is left over")
			if e.queued(bus.StreamEvents) == 0 {
				t.Error("there is no event")
			}
		})
	}
}

// mortal runs a worker that loses its connection and blocks when it reaches the point.
func (e *env) mortal(point string, died chan<- struct{}) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn := testenv.Connect(e.t, e.URL)
	grave := make(chan struct{})
	var once sync.Once
	js, err := bus.JetStream(conn)
	if err != nil {
		e.t.Fatal(err)
	}
	cfg := worker.Config{Conn: conn, Bus: bus.New(js), Store: e.store, Log: testenv.Silent(), Timing: quick()}
	cfg.Reached = func(reached string) {
		if reached != point {
			return
		}
		once.Do(func() {
			conn.Close()
			cancel()
			close(died)
		})
		<-grave
	}
	w, err := worker.New(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	e.t.Cleanup(func() {
		cancel()
		close(grave)
		if err := <-ended; err != nil {
			e.t.Error(err)
		}
	})
	e.eventually(w.Ready, "worker is ready")
}

// honestTask starts agents that accept a command, publish the result and reply to repeated commands with
// it. It submits a task for them.
func (e *env) honestTask(n int) procfleet.TaskID {
	e.t.Helper()
	for _, h := range hosts(n) {
		e.agent(h, func(n int, c *agentproto.Command) *agentproto.Reply {
			if n == 0 {
				e.publish(procfleet.TaskID(c.Task), h, succeeded(c.Items[0].Item))
				return accept(n, c)
			}
			r := succeeded(c.Items[0].Item)
			return &agentproto.Reply{Items: []agentproto.ReplyItem{{Item: r.Item, Result: &r}}}
		})
	}
	return e.submit(time.Minute, chunk(procfleet.ActionStart, hosts(n)...))
}
