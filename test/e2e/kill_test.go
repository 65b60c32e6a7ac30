//go:build linux

package e2e

import (
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// killHosts is the number of hosts of each task that is interrupted, killPerHost the number
// of its processes on each of them.
func killHosts() int { return unlessLong(4, 20) }

const killPerHost = 5

// TestKilledAtCriticalPoints kills each role at critical points during tasks, in a fleet for
// each point. Every item must have one final result that agrees with the host, the counters
// must add up at every poll, each start command must run exactly once, and the end must be
// notified.
func TestKilledAtCriticalPoints(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"dispatcher.stored", "dispatcher.registered", "dispatcher.published"} {
		killed(t, point, func(f *fleet, _ *client) { f.killDispatcher(point) })
	}
	killed(t, "dispatcher of events", func(f *fleet, c *client) {
		f.killProducing(c, "dispatcher.stored", "dispatcher.published", "dispatcher.submitted")
	})
	for _, point := range []string{
		"worker.begun", "worker.asked", "worker.before-done", "worker.after-done",
		"worker.collecting", "worker.collected", "worker.before-notify",
	} {
		killed(t, point, func(f *fleet, c *client) { f.killWorker(c, point) })
	}
	for _, point := range []string{"agent.received", "agent.before-exec", "agent.after-spawn", "agent.before-done", "agent.after-done", "agent.after-receipt"} {
		killed(t, point, func(f *fleet, c *client) { f.killAgents(c, point) })
	}
	killed(t, "nats", func(f *fleet, c *client) { f.killServer(c, func() { f.broker.Kill(); f.broker.Start() }) })
	killed(t, "redis", func(f *fleet, c *client) { f.killServer(c, func() { f.redis.Stop(f.t); f.redis.Restart(f.t) }) })
}

// killed runs a subtest with a fleet that has no worker, and whose dispatcher accepts no
// submissions of producers.
func killed(t *testing.T, name string, test func(f *fleet, c *client)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, killHosts())
		_, c := f.dispatcher("", "--submissions=false")
		keeper := f.worker("") // stores the first announcements
		f.waitListed(c, killHosts())
		stop(t, keeper)
		test(f, c)
	})
}

func (f *fleet) killDispatcher(point string) {
	f.worker("")
	dying, first := f.dispatcher(point)
	_, second := f.dispatcher("")
	all := f.procs.grid(f.hosts(killHosts()), killPerHost, word(point))
	body := operation("start", all)

	if status, data, ok := first.call(http.MethodPost, "/v1/tasks", "key-"+point, body); ok {
		f.t.Fatalf("response %d %s, but the dispatcher should have died at %s", status, data, point)
	}
	dying.Wait(f.t, startTimeout)
	status, data, ok := second.call(http.MethodPost, "/v1/tasks", "key-"+point, body)
	if !ok || status != http.StatusCreated {
		f.t.Fatalf("the repeat at another dispatcher: %d %s", status, data)
	}
	id := taskID(f.t, data)
	second.wait(id)
	f.verifyStarted(second, id, all)
	f.killAll(second, all)
}

func (f *fleet) killWorker(c *client, point string) {
	dying := f.worker(point)
	all := f.procs.grid(f.hosts(killHosts()), killPerHost, word(point))
	id := c.submit(operation("start", all))
	dying.Wait(f.t, finishTimeout)
	f.worker("")
	c.wait(id)
	f.verifyStarted(c, id, all)
	f.killAll(c, all)
}

// killAgents kills every fourth agent at a point, and restarts it. The host runs
// other commands at the same time. A command that was about to run must not run any
// more, and its result must say so.
func (f *fleet) killAgents(c *client, point string) {
	f.worker("")
	victims := f.crashEveryFourth(point)
	all := f.procs.grid(f.hosts(killHosts()), killPerHost, word(point))
	id := c.submit(operation("start", all))
	for _, a := range victims {
		a.child.Wait(f.t, finishTimeout)
		a.start()
	}
	c.wait(id)
	if point == "agent.received" { // no command had begun, so every command must run
		f.verifyStarted(c, id, all)
	} else {
		f.verifyTruth(c, id, all, len(all)*3/4)
	}
	f.killAll(c, all)
}

// verifyTruth checks a finished task whose starts were interrupted: each result
// agrees with the host, no command ran twice, and at least the given number
// succeeded.
func (f *fleet) verifyTruth(c *client, id string, all []proc, succeeded int) {
	f.t.Helper()
	good, live := 0, programs()
	for _, r := range c.results(id, len(all)) {
		p := find(f.t, all, r)
		switch {
		case r.State == "succeeded" && p.starts() == 1 && p.pid() != 0 && r.Status != nil && r.Status.PID == p.pid():
			good++
		case r.State == "failed" && p.starts() == 0 && len(live.of(p)) == 0:
		default:
			f.t.Errorf("%s on %s: %s %q, but the start command ran %d times and the pid is %d",
				r.Name, r.Host, r.State, r.Message, p.starts(), p.pid())
		}
	}
	if good < succeeded {
		f.t.Errorf("%d of %d succeeded, want at least %d", good, len(all), succeeded)
	}
	f.waitFinishedEvent(id)
}

func (f *fleet) crashEveryFourth(point string) []*agent {
	var victims []*agent
	for i := 0; i < len(f.agents); i += 4 {
		victims = append(victims, f.agents[i])
	}
	for _, a := range victims {
		a.stop()
		a.start(crashAt(point)...)
		a.waitReady()
	}
	return victims
}

// killServer kills a server when a part of the start commands has run and the others have
// not ended.
func (f *fleet) killServer(c *client, kill func()) {
	f.worker("")
	all := f.procs.grid(f.hosts(killHosts()), killPerHost, word(f.t.Name()))
	body := operation("start", all)
	held := all[len(all)/2:]
	for i, o := range body["operations"].([]map[string]any)[len(all)/2:] {
		o["process"] = held[i].waiting()
	}
	id := c.submit(body)
	testenv.Eventually(f.t, finishTimeout, func() bool { return started(all) >= len(all)/10 }, "a tenth of the start commands ran")
	kill()
	release(f.t, held)
	c.wait(id)
	f.verifyStarted(c, id, all)
	f.killAll(c, all)
}

// verifyStarted checks a finished task that started processes: each result is
// succeeded with the actual pid, and each start command ran exactly once.
func (f *fleet) verifyStarted(c *client, id string, all []proc) {
	f.t.Helper()
	verifyResults(f.t, c.results(id, len(all)), all)
	f.waitFinishedEvent(id)
}

func verifyResults(t *testing.T, results []result, all []proc) {
	t.Helper()
	live := programs()
	for _, r := range results {
		p := find(t, all, r)
		switch {
		case r.State != "succeeded" || r.Code != 0 || r.Message != "success":
			t.Errorf("%s on %s: %s %d %q", r.Name, r.Host, r.State, r.Code, r.Message)
		case r.Status == nil || r.Status.PID != p.pid() || p.pid() == 0:
			t.Errorf("%s on %s: result %+v, pid %d", r.Name, r.Host, r.Status, p.pid())
		case p.starts() != 1:
			t.Errorf("%s on %s: the start command ran %d times", r.Name, r.Host, p.starts())
		case len(live.of(p)) != 1:
			t.Errorf("%s on %s: running as %v", r.Name, r.Host, live.of(p))
		}
	}
}

// killAll kills processes with the action of that name, and checks the outcome.
func (f *fleet) killAll(c *client, all []proc) {
	f.t.Helper()
	id := c.submit(operation("kill", all))
	if end := c.wait(id); end.Counts["succeeded"]+end.Counts["unchanged"] != len(all) {
		f.t.Errorf("kill: %v, want all %d gone", end.Counts, len(all))
	}
	live := programs()
	for _, p := range all {
		if pids := live.of(p); len(pids) != 0 {
			f.t.Errorf("%s on %s still runs after kill: %v", p.name, p.host, pids)
		}
	}
}

// word changes the name of a test into a process name.
func word(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, path.Base(name))
}

func find(t *testing.T, all []proc, r result) proc {
	t.Helper()
	for _, p := range all {
		if p.host == r.Host && p.name == r.Name {
			return p
		}
	}
	t.Fatalf("unexpected result for %s on %s", r.Name, r.Host)
	return proc{}
}
