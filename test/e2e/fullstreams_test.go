//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// full makes a stream that drops its oldest messages reject new ones instead; room
// restores it.
func (f *fleet) full(stream string) (js jetstream.JetStream, room func()) {
	f.t.Helper()
	var before int64
	js = f.tune(stream, func(cfg *jetstream.StreamConfig) {
		before = cfg.MaxBytes
		cfg.Discard, cfg.MaxBytes = jetstream.DiscardNew, 1
	})
	return js, func() { f.shrink(stream, before) }
}

// simulated returns a task on n simulated hosts.
func simulated(hosts int) map[string]any {
	return map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(hosts)}
}

// TestAFullStreamRejectsProducers runs no dispatcher for submissions
// until the stream is full. Callers over HTTP must not be affected. Stored
// submissions must be accepted once, rejected ones must not, and the stream must
// then accept new ones.
func TestAFullStreamRejectsProducers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false")
	f.worker("")
	f.simulate(20, "0s")
	js := f.shrink("PROCFLEET_SUBMIT", 8<<10)
	body, err := json.Marshal(simulated(20))
	if err != nil {
		t.Fatal(err)
	}
	taken := -1 // JetStream rejects the last one
	for ; err == nil && taken < 100; taken++ {
		_, err = js.Publish(t.Context(), "procfleet.submit", body)
	}
	var refusal *jetstream.APIError
	if !errors.As(err, &refusal) || refusal.Description != "maximum bytes exceeded" || taken == 0 {
		t.Fatalf("after %d submissions: %v", taken, err)
	}
	if end := c.wait(c.submit(simulated(20))); end.Counts["succeeded"] != 20 {
		t.Errorf("a task over HTTP: %v", end.Counts)
	}

	_, c = f.dispatcher("")
	testenv.Eventually(t, finishTimeout, func() bool { return messages(t, js, "PROCFLEET_SUBMIT") == 0 }, "every submission is accepted")
	if _, err := js.Publish(t.Context(), "procfleet.submit", body); err != nil {
		t.Errorf("after the stream has space again: %v", err)
	}
	testenv.Eventually(t, finishTimeout, func() bool { return len(c.tasks()) >= taken+2 }, "the new submission is accepted")
	tasks := c.tasks()
	for _, at := range tasks {
		if end := c.wait(at.ID); end.Counts["succeeded"] != 20 {
			t.Errorf("task %s: %v", at.ID, end.Counts)
		}
	}
	if failed := messages(t, js, "PROCFLEET_SUBMIT_FAILED"); len(tasks) != taken+2 || failed != 0 {
		t.Errorf("%d tasks of %d submissions and a request; %d failed", len(tasks), taken+1, failed)
	}
}

// called counts callbacks by task.
type called struct {
	*httptest.Server
	mu    sync.Mutex
	tasks map[string]int
}

func newCalled(t *testing.T) *called {
	t.Helper()
	c := &called{tasks: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct{ Task string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Errorf("a callback: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tasks[event.Task]++
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *called) times(task string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks[task]
}

// TestEndsAreNotifiedWhenTheStreamHasSpace lets tasks end while the stream of finished
// events rejects messages. Each end must be notified once by event and callback
// after the stream accepts messages again.
func TestEndsAreNotifiedWhenTheStreamHasSpace(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false")
	f.worker("", "--callback-allow", "127.0.0.1")
	f.simulate(20, "0s")
	f.waitListed(c, 20) // a starting role restores the configuration of the stream
	callbacks := newCalled(t)
	js, room := f.full("PROCFLEET_EVENTS")
	var ended []string
	for range 20 {
		body := simulated(20)
		body["callback"] = callbacks.URL
		ended = append(ended, c.submit(body))
	}
	for _, id := range ended {
		if end := c.wait(id); end.Counts["succeeded"] != 20 {
			t.Errorf("task %s: %v", id, end.Counts)
		}
	}
	if n := messages(t, js, "PROCFLEET_EVENTS"); n != 0 {
		t.Errorf("%d events were stored", n)
	}
	room()
	for _, id := range ended {
		testenv.Eventually(t, finishTimeout, func() bool { return callbacks.times(id) > 0 }, "the end of "+id+" is notified")
	}
	events := stored(t, js, "PROCFLEET_EVENTS")
	for _, id := range ended {
		if n := events[id+"/finished "+id]; n != 1 || callbacks.times(id) != 1 {
			t.Errorf("task %s: %d events, %d callbacks", id, n, callbacks.times(id))
		}
	}
}

// contents reads every message of a stream.
func contents(t *testing.T, js jetstream.JetStream, name string) (all [][]byte) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	for at := max(state.FirstSeq, 1); at <= state.LastSeq; at++ {
		msg, err := stream.GetMsg(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, msg.Data)
	}
	return all
}

// stored counts the messages of a stream by event and task.
func stored(t *testing.T, js jetstream.JetStream, name string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, data := range contents(t, js, name) {
		var event struct{ Event, Task string }
		if err := json.Unmarshal(data, &event); err != nil {
			t.Fatal(err)
		}
		counts[event.Event+" "+event.Task]++
	}
	return counts
}

// TestAFullAuditStreamRejectsCallers fills the stream of the audit log,
// which is required and the only destination, while a task runs. Callers of every
// API must get a 503 with the reason; a dispatcher that does not require the log
// must continue. After the stream has space, all must continue, and accepted tasks
// must have both records.
func TestAFullAuditStreamRejectsCallers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false", "--audit-required")
	_, lax := f.dispatcher("", "--submissions=false")
	worker := f.worker("", "--audit-required")
	f.simulate(20, "0s")
	f.waitListed(c, 20) // a starting role restores the configuration of the stream
	js := f.shrink("PROCFLEET_EVENTS", 4<<10)
	worker.Freeze(t)
	var accepted []string
	for len(accepted) < 20 { // the stream drops the oldest records, and callers are accepted
		accepted = append(accepted, c.submit(simulated(20)))
	}
	if n := messages(t, js, "PROCFLEET_EVENTS"); n == 0 || n >= 20 {
		t.Errorf("%d records in 4 KiB", n)
	}
	f.tune("PROCFLEET_EVENTS", func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = 1 << 20 })
	last := c.submit(simulated(20))
	accepted = append(accepted, last)
	_, room := f.full("PROCFLEET_EVENTS")
	worker.Signal(syscall.SIGCONT)

	everyAPI(func(d *apiFamily) {
		if header := c.fails(d, "operating without room for the record", d.operate, d.good, d.away); header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After in %v", d.name, header)
		}
	})
	why := regexp.MustCompile(`"code":"unavailable".*the audit log cannot be written; nothing was accepted, try again later`)
	if _, _, text := c.send("POST /v1/tasks", apiFamilies()[len(apiFamilies())-1].good); !why.MatchString(text) {
		t.Errorf("message %s", text)
	}
	free := lax.submit(simulated(20))
	for _, id := range append(accepted, free) {
		if end := c.wait(id); end.Counts["succeeded"] != 20 {
			t.Errorf("task %s: %v", id, end.Counts)
		}
	}

	room()
	testenv.Eventually(t, finishTimeout, func() bool {
		status, _, _ := c.call(http.MethodPost, "/v1/tasks", "", simulated(20))
		return status == http.StatusCreated
	}, "tasks are accepted again")
	for _, id := range accepted {
		testenv.Eventually(t, finishTimeout, func() bool { return stored(t, js, "PROCFLEET_EVENTS")[id+"/finished "+id] > 0 }, "the end of "+id+" is recorded")
	}
	records, ends := stored(t, js, "PROCFLEET_EVENTS"), stored(t, js, "PROCFLEET_EVENTS")
	if records["accepted "+last] != 1 || ends[last+"/finished "+last] != 1 {
		t.Errorf("records %v, ends %v", records, ends)
	}
	ran := 0
	for _, at := range c.tasks() {
		if at.State != "rejected" {
			ran++
		}
	}
	if want := len(accepted) + 2; ran != want {
		t.Errorf("%d tasks ran, %d were accepted", ran, want)
	}
}
