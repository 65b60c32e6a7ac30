package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/worker"
)

// startRestartable is start with a bus that the returned function takes away
// and the next call brings back.
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
	if n.JS, err = natsconn.JetStream(n.Conn); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), n.JS, bus.Options{AckWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	n.Bus = bus.New(n.JS)
	e = &env{NATS: n, t: t, store: newFakeStore()}
	e.worker, e.stop = e.startWorker(append([]func(*worker.Config){func(c *worker.Config) { c.Timing.AckWait = time.Second }}, edit...)...)
	return e, down, up
}

// A broker that restarts takes all agents away with it. None of them may be
// called unreachable for that, not even one whose presence has run out.
func TestABrokerRestartFailsNoHost(t *testing.T) {
	t.Parallel()
	e, down, up := startRestartable(t, func(c *worker.Config) { c.Timing.ReconnectGrace = 30 * time.Second })
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
	for n := 2; n <= 3; n++ { // agents come back later than the worker
		(&fakeAgent{t: t, conn: e.Conn, host: host(n), reply: accept}).listen()
	}
	e.waitState(before, 0, procfleet.StateDelivered)
	e.waitState(before, 1, procfleet.StateDelivered)
	e.waitState(late.ID, 0, procfleet.StateDelivered)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "chunks are done")
}
