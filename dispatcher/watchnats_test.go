package dispatcher

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// startBroker starts a NATS server in this process, so that tests can count its subscriptions.
func startBroker(t *testing.T) *server.Server {
	t.Helper()
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	broker.Start()
	t.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	if !broker.ReadyForConnections(patience) {
		t.Fatal("the broker does not start")
	}
	return broker
}

func busOn(t *testing.T, broker *server.Server) *bus.Bus {
	t.Helper()
	js, err := bus.JetStream(testenv.Connect(t, broker.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	return bus.New(js)
}

func TestAThousandWatchersOfATaskAreOneSubscriptionAndOneReadForAChange(t *testing.T) {
	t.Parallel()
	const watchers = 1000
	broker := startBroker(t)
	worker := busOn(t, broker)
	store := &scriptedStore{task: aTask(1)}
	cfg := testConfig(t)
	cfg.Hints = busOn(t, broker)
	stop, err := cfg.Hints.Follow(t.Context(), aTask(1).ID, func(bool) {}) // which waits for the connection
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	idle := broker.NumSubscriptions()
	d := openWindow(t, cfg, store, nil)

	var wg sync.WaitGroup
	var begun, ended atomic.Int32
	for range watchers {
		wg.Go(func() {
			v, err := d.tryView(aTask(0).ID, nil)
			if err != nil {
				t.Error(err)
				return
			}
			for first := true; ; first = false {
				e, err := v.next()
				switch {
				case err != nil:
					t.Error(err)
					return
				case e.name == "end":
					ended.Add(1)
					return
				case first:
					begun.Add(1)
				}
			}
		})
	}
	testenv.Eventually(t, 2*patience, func() bool { return begun.Load() == watchers }, "every watcher to have begun")
	if n := broker.NumSubscriptions() - idle; n != 1 {
		t.Errorf("%d subscriptions, want 1", n)
	}
	before := store.count()
	store.set(aTask(10))
	if err := worker.Hint(aTask(0).ID, true); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := ended.Load(); n != watchers {
		t.Errorf("%d watchers saw the end, want %d", n, watchers)
	}
	if n := store.count() - before; n != 1 {
		t.Errorf("%d reads for one change", n)
	}
	testenv.Eventually(t, patience, func() bool { return broker.NumSubscriptions() == idle }, "no subscription to be left")
}

// settle brings the items of a task from one state to the next.
func settle(t *testing.T, store *stores.Bolt, hints *bus.Bus, id procfleet.TaskID, items ...int) {
	t.Helper()
	batch := taskstore.Batch{Task: id}
	for _, i := range items {
		batch.Results = append(batch.Results, procfleet.Result{
			Item: i, Code: procfleet.CodeSuccess, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent,
		})
	}
	recorded, err := store.Record(t.Context(), []taskstore.Batch{batch})
	if err != nil || recorded[0].Applied != len(items) {
		t.Fatalf("%+v, %v", recorded, err)
	}
	_ = hints.Hint(id, recorded[0].Completed) // which may be lost
}

func TestAWatchOutlivesItsDispatcherAndItsBroker(t *testing.T) {
	t.Parallel()
	broker, store := startBroker(t), openStore(t)
	hints := busOn(t, broker)
	open := func() *served {
		cfg := testConfig(t)
		cfg.Hints = busOn(t, broker)
		return serveWindow(t, cfg, store, func(timing *watchTiming) { timing.poll = 50 * time.Millisecond })
	}
	first, second := open(), open()
	a := first.call(http.MethodPost, nativePath, `{"action":"status","process":{"namespace":"ns","name":"web","proc_name":"nginx"},"hosts":["0:10.0.0.1","0:10.0.0.2","0:10.0.0.3"]}`)
	id := procfleet.TaskID(fmt.Sprint(a.body["id"]))
	if _, err := store.Begin(t.Context(), id, 0, 0); err != nil {
		t.Fatal(err)
	}
	v := first.view(id)
	v.want("snapshot", 0)
	settle(t, store, hints, id, 0)
	seen := v.want("progress", 1)

	first.stop()
	v.wantEnd()
	v = second.view(id, "Last-Event-ID", seen.id)
	broker.Shutdown()
	settle(t, store, hints, id, 1)
	v.want("progress", 2)
	settle(t, store, hints, id, 2)
	end := v.want("end", 3)
	v.wantEnd()
	if a := second.call(http.MethodGet, eventsPath(id)+"?last_event_id="+end.id, ""); a.status != http.StatusNoContent {
		t.Errorf("after the end: %d %s", a.status, a.text)
	}
}
