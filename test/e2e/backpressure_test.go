//go:build linux

package e2e

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// everyAPI calls ask for all APIs concurrently, because each waits for the same
// timeout.
func everyAPI(ask func(d *apiFamily)) {
	var asked sync.WaitGroup
	for _, d := range apiFamilies() {
		asked.Go(func() { ask(&d) })
	}
	asked.Wait()
}

// TestAHangingStoreLosesNothing suspends Redis while a task runs, so that Redis
// does not reply and keeps its connections open. Every API must respond 503 and say
// that nothing was done; accepted tasks must end after Redis resumes.
func TestAHangingStoreLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	_, c := f.dispatcher("", "--slack", "10m") // nothing is overdue, even on a busy machine
	f.worker("")
	f.waitListed(c, 3)
	all := f.procs.grid(f.hosts(3), 10, "hangs")
	id := c.submit(operation("start", all))
	testenv.Eventually(t, finishTimeout, func() bool { return started(all) > 0 }, "a start command runs")

	f.redis.Freeze(t)
	everyAPI(func(d *apiFamily) {
		for _, way := range []struct{ what, way, body string }{
			{"operating", d.operate, d.good}, {"reading", d.read(id), d.ask(id)},
		} {
			status, header, text := c.send(way.way, way.body)
			refused := strings.Contains(text, `"error"`) || strings.Contains(text, `"result":false`)
			if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !refused {
				t.Errorf("%s, %s while the store hangs: %d %v %s", d.name, way.what, status, header, text)
			}
			if way.what == "operating" && !strings.Contains(text, "nothing was done") {
				t.Errorf("%s: the response does not say that nothing was done: %s", d.name, text)
			}
		}
	})
	f.redis.Thaw(t)

	c.wait(id)
	f.verifyStarted(c, id, all)
	if n := len(c.tasks()); n != 1 {
		t.Errorf("%d tasks, want the accepted one: the other responses said that nothing was done", n)
	}
	f.waitListed(c, 3)
	f.killAll(c, all)
}

func started(all []proc) (ran int) {
	for _, p := range all {
		ran += p.starts()
	}
	return ran
}

// shrink makes a stream so small that it is soon full.
func (f *fleet) shrink(stream string, bytes int64) jetstream.JetStream {
	f.t.Helper()
	return f.tune(stream, func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = bytes })
}

func (f *fleet) jetStream() jetstream.JetStream {
	f.t.Helper()
	js, err := jetstream.New(f.connect())
	if err != nil {
		f.t.Fatal(err)
	}
	return js
}

// tune changes the configuration of a stream.
func (f *fleet) tune(stream string, change func(*jetstream.StreamConfig)) jetstream.JetStream {
	f.t.Helper()
	js := f.jetStream()
	have, err := js.Stream(f.t.Context(), stream)
	if err != nil {
		f.t.Fatal(err)
	}
	cfg := have.CachedInfo().Config
	change(&cfg)
	if _, err := js.UpdateStream(f.t.Context(), cfg); err != nil {
		f.t.Fatal(err)
	}
	return js
}

// TestAFullQueueRejectsCallers runs no worker until the queue is full. Every API
// must then respond 503 in its own format. After a worker starts, accepted tasks
// must end, rejected ones must not run, and new ones must be accepted.
func TestAFullQueueRejectsCallers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false")
	f.simulate(20, "0s")
	f.shrink("PROCFLEET_OPS", 8<<10)
	body := map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(20)}

	var accepted []string
	for {
		status, data, ok := c.call(http.MethodPost, "/v1/tasks", "", body)
		if ok && status == http.StatusServiceUnavailable {
			break
		}
		if !ok || status != http.StatusCreated {
			t.Fatalf("task %d: %d %s", len(accepted), status, data)
		}
		accepted = append(accepted, taskID(t, data))
	}
	everyAPI(func(d *apiFamily) {
		if header := c.fails(d, "operating with a full queue", d.operate, d.good, d.away); header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After in %v", d.name, header)
		}
	})

	f.worker("")
	for _, id := range accepted {
		if end := c.wait(id); end.Counts["succeeded"] != 20 {
			t.Errorf("an accepted task: %v", end.Counts)
		}
	}
	if end := c.wait(c.submit(body)); end.Counts["succeeded"] != 20 {
		t.Errorf("a later task: %v", end.Counts)
	}
	ran := 0
	for _, task := range c.tasks() {
		if task.State != "rejected" {
			ran++
		}
	}
	if ran != len(accepted)+1 {
		t.Errorf("%d tasks ran, %d were accepted", ran, len(accepted)+1)
	}
}

// TestAgentsKeepResults removes the workers, their replies or the store
// while start commands run. Agents must send each result until the store has it,
// and run nothing twice.
func TestAgentsKeepResults(t *testing.T) {
	t.Parallel()
	const hosts, each = 3, 8
	f := newFleet(t, hosts)
	_, c := f.dispatcher("", "--submissions=false", "--slack", "10m")
	worker := f.worker("")
	f.waitListed(c, hosts)
	requests := newAttacker(t, f.broker.URL).hear("procfleet.result.>")
	for _, without := range []struct {
		what         string
		begin, after func()
	}{
		{"workers", func() { stop(t, worker) }, func() { worker = f.worker("") }},
		{"replies", func() { worker.Freeze(t) }, func() { worker.Signal(syscall.SIGCONT) }},
		{"store", func() { f.redis.Freeze(t) }, func() { f.redis.Thaw(t) }},
	} {
		all := f.procs.grid(f.hosts(hosts), each, without.what)
		id := c.submit(waitingStart(all))
		testenv.Eventually(t, finishTimeout, func() bool { return c.task(id).Counts["delivered"] == len(all) }, "agents accept all items")
		without.begin()
		release(t, all)
		testenv.Eventually(t, finishTimeout, func() bool { return started(all) == len(all) }, "every start command ran")
		for again := map[string]int{}; len(again) < hosts || slices.Min(slices.Collect(maps.Values(again))) < 2; {
			var sent agentproto.Results
			if err := agentproto.Decode(next(t, requests, agentproto.TypeResults).Data, agentproto.TypeResults, &sent); err != nil {
				t.Fatal(err)
			}
			if sent.Task == id {
				again[sent.Host]++
			}
		}
		without.after()
		c.wait(id)
		f.verifyStarted(c, id, all)
		f.killAll(c, all)
	}
}

// TestSuspendedWorker suspends the only worker, so that chunks exceed
// their acknowledgement timeout.
func TestSuspendedWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false", "--slack", "10m")
	worker := f.worker("")
	f.simulate(600, "100ms")
	f.waitListed(c, 600)
	small := map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(1)}
	big := map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(600)}
	want := map[string]int{c.submit(big): 600}
	worker.Freeze(t)
	for range 100 {
		want[c.submit(small)] = 1
	}
	want[c.submit(big)] = 600
	worker.Signal(syscall.SIGCONT)
	for id, items := range want {
		if end := c.wait(id); end.Counts["succeeded"] != items {
			t.Errorf("task %s: %v", id, end.Counts)
		}
	}
}
