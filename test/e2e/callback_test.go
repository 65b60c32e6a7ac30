//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// callback is one request to a receiver.
type callback struct{ key, task string }

// TestAWorkerKilledBeforeTheCallbackIsAnsweredPublishesNoSecondEvent kills the
// worker while the receiver delays its response. The next worker must send the
// callback again, and no event.
func TestAWorkerKilledBeforeTheCallbackIsAnsweredPublishesNoSecondEvent(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false")
	dying := f.worker("", "--callback-allow", "127.0.0.1")
	f.simulate(3, "0s")
	f.waitListed(c, 3)

	held, answered, release := make(chan callback, 1), make(chan callback, 10), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct{ Task string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Errorf("a callback: %v", err)
		}
		got := callback{key: r.Header.Get("Idempotency-Key"), task: event.Task}
		select {
		case held <- got:
			<-release
		default:
			answered <- got
		}
	}))
	t.Cleanup(receiver.Close)
	t.Cleanup(func() { close(release) })

	nc, err := nats.Connect(f.broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	// Messages of workers, before the stream drops duplicate ids.
	published, err := nc.SubscribeSync(finishedSubject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}

	body := simulated(3)
	body["callback"] = receiver.URL
	id := c.submit(body)
	want := callback{key: id + "/finished", task: id}
	testenv.Eventually(t, finishTimeout, func() bool { return len(held) > 0 }, "the receiver delays the callback")
	dying.Kill()
	if first := <-held; first != want {
		t.Errorf("first callback %+v, want %+v", first, want)
	}
	held <- callback{} // from now on the receiver responds

	f.worker("", "--callback-allow", "127.0.0.1")
	testenv.Eventually(t, finishTimeout, func() bool { return len(answered) > 0 }, "the next worker sends the callback")
	if second := <-answered; second != want {
		t.Errorf("second callback %+v, want %+v", second, want)
	}
	if err := nc.Flush(); err != nil { // messages published before the callback have arrived
		t.Fatal(err)
	}
	if n, _, err := published.Pending(); err != nil || n != 1 {
		t.Errorf("the event was published %d times (%v), want once", n, err)
	}
	if events := stored(t, js, "PROCFLEET_EVENTS"); len(events) != 2 || events["accepted "+id] != 1 || events[id+"/finished "+id] != 1 {
		t.Errorf("PROCFLEET_EVENTS has %v, want two events of %s", events, id)
	}
	if end := c.wait(id); end.Counts["succeeded"] != 3 {
		t.Errorf("task %s: %v", id, end.Counts)
	}
}
