//go:build linux

package e2e

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// cancel cancels a task that has not ended, or its items on hosts only.
func (c *client) cancel(id, mode string, hosts ...string) {
	c.t.Helper()
	body := map[string]any{"mode": mode, "reason": "wrong version", "hosts": hosts}
	status, data, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/cancel", "", body)
	if !ok || status != http.StatusOK {
		c.t.Fatalf("cancel of %s: %d %s", id, status, data)
	}
}

// TestACanceledTaskRunsNothingWhicheverRoleIsKilled cancels a task of which a worker has begun
// a part, and then kills the dispatcher that answered, Redis, a worker that has sent the
// requests to cancel, and an agent that has stored its decision. No command of the task runs.
func TestACanceledTaskRunsNothingWhicheverRoleIsKilled(t *testing.T) {
	t.Parallel()
	const hosts, perHost = 3, 4
	f := newFleet(t, hosts)
	dying, first := f.dispatcher("", "--submissions=false")
	_, c := f.dispatcher("", "--submissions=false")
	keeper := f.worker("") // stores the first announcements
	f.waitListed(c, hosts)
	keeper.Kill()
	victim := f.agents[0]
	victim.stop()
	victim.start(crashAt("agent.canceled")...)
	victim.waitReady()

	all := f.procs.grid(f.hosts(hosts), perHost, "canceled")
	id := c.submit(operation("start", all))
	f.worker("worker.begun").Wait(t, finishTimeout)
	first.cancel(id, "drain")
	dying.Kill()
	f.redis.Stop(t)
	f.redis.Restart(t)
	// A worker may die before its requests have left it. The next one gives the agent up if it does
	// not reply, so the agent has to die of the request of a worker that dies.
	for asked := false; !asked; {
		f.worker("worker.cancel-asked").Wait(t, finishTimeout)
		select {
		case <-victim.child.Done():
			asked = true
		default:
		}
	}
	victim.start()
	victim.waitReady()
	f.worker("")
	c.wait(id)
	for _, r := range c.results(id, len(all)) {
		p := find(t, all, r)
		if r.State != "cancelled" || p.starts() != 0 {
			t.Errorf("%s on %s: %s %q, the start command ran %d times", r.Name, r.Host, r.State, r.Message, p.starts())
		}
	}
	f.waitFinishedEvent(id)
	if status := c.control(id, "cancel"); status != http.StatusConflict {
		t.Errorf("cancel of a finished task: %d", status)
	}
	again := c.submit(operation("start", all))
	c.wait(again)
	f.verifyStarted(c, again, all)
}

// TestCanceledHostsRunNothingWhicheverRoleIsKilled cancels one host of a task of which a worker has
// begun a part, and kills the dispatcher that answered, Redis, and a worker that has sent the
// request to cancel. No command runs on that host, and the other hosts run theirs once.
func TestCanceledHostsRunNothingWhicheverRoleIsKilled(t *testing.T) {
	t.Parallel()
	const hosts, perHost = 3, 2
	f := newFleet(t, hosts)
	dying, first := f.dispatcher("", "--submissions=false")
	_, c := f.dispatcher("", "--submissions=false")
	keeper := f.worker("") // stores the first announcements
	f.waitListed(c, hosts)
	keeper.Kill()
	canceled := f.hosts(hosts)[1]
	all := f.procs.grid(f.hosts(hosts), perHost, "partly")
	id := c.submit(operation("start", all))
	f.worker("worker.begun").Wait(t, finishTimeout)
	first.cancel(id, "drain", canceled)
	dying.Kill()
	f.redis.Stop(t)
	f.redis.Restart(t)
	f.worker("worker.cancel-asked").Wait(t, finishTimeout)
	f.worker("")
	c.wait(id)
	for _, r := range c.results(id, len(all)) {
		p, state, starts := find(t, all, r), "succeeded", 1
		if r.Host == canceled {
			state, starts = "cancelled", 0
		}
		if r.State != state || p.starts() != starts {
			t.Errorf("%s on %s: %s %q, the start command ran %d times", r.Name, r.Host, r.State, r.Message, p.starts())
		}
	}
	f.waitFinishedEvent(id)
}

// TestACancelOfHostsOfAPausedTask cancels a host of a task that was paused before it began.
func TestACancelOfHostsOfAPausedTask(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	keeper := f.worker("")
	f.waitListed(c, 2)
	keeper.Kill()
	all := f.procs.grid(f.hosts(2), 1, "paused")
	id := c.submit(operation("start", all))
	c.control(id, "pause")
	c.cancel(id, "drain", all[0].host)
	f.worker("")
	testenv.Eventually(t, finishTimeout, func() bool { return c.task(id).Counts["cancelled"] == 1 }, "the item is canceled while the task is paused")
	if shown := c.task(id); shown.State == "finished" || shown.Counts["pending"] != 1 {
		t.Errorf("the task is %+v", shown)
	}
	c.control(id, "resume")
	c.wait(id)
	for _, r := range c.results(id, 2) {
		switch p := find(t, all, r); {
		case r.Host == all[0].host && (r.State != "cancelled" || !strings.Contains(r.Message, "wrong version") || p.starts() != 0):
			t.Errorf("canceled: %s %q, %d starts", r.State, r.Message, p.starts())
		case r.Host == all[1].host && (r.State != "succeeded" || p.starts() != 1):
			t.Errorf("not canceled: %s %q, %d starts", r.State, r.Message, p.starts())
		}
	}
	f.wantEvents(id, "1 accepted", "2 held operator", "3 items_cancelled drain", "4 resumed operator", "5 finished")
}

func TestACancelInterruptsTheCommandOfOneHost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 2)
	interrupted, other := f.procs.new(f.hosts(2)[0], "half"), f.procs.new(f.hosts(2)[1], "half")
	id := c.begun(interrupted, other)
	c.cancel(id, "interrupt", interrupted.host)
	testenv.Eventually(t, finishTimeout, func() bool { return c.task(id).Counts["failed"] == 1 }, "the command is interrupted")
	if shown := c.task(id); shown.State == "finished" {
		t.Errorf("the task is %+v", shown)
	}
	other.release(t)
	c.wait(id)
	for _, r := range c.results(id, 2) {
		if r.Host == interrupted.host && !strings.Contains(r.Message, "interrupted: the task was canceled") || r.Host == other.host && r.State != "succeeded" {
			t.Errorf("%s: %s %q", r.Host, r.State, r.Message)
		}
	}
	if n := interrupted.starts(); n != 0 {
		t.Errorf("the interrupted program was started %d times", n)
	}
}

// begun returns a task whose start commands wait for release, and waits until they run.
func (c *client) begun(ps ...proc) (id string) {
	c.t.Helper()
	operations := make([]map[string]any, len(ps))
	for i, p := range ps {
		spec := p.waiting()
		control := spec["control"].(map[string]any)
		control["start"] = "touch begun; " + control["start"].(string)
		operations[i] = map[string]any{"action": "start", "process": spec, "hosts": []string{p.host}}
	}
	id = c.submit(map[string]any{"operations": operations})
	for _, p := range ps {
		testenv.Eventually(c.t, finishTimeout, func() bool {
			_, err := os.Stat(filepath.Join(p.dir, "begun"))
			return err == nil
		}, "the start command runs")
	}
	return id
}

func TestACancelDrainsOrInterruptsWhatHasBegun(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	drained, interrupted := f.procs.new(f.hosts(1)[0], "drained"), f.procs.new(f.hosts(1)[0], "interrupted")

	id := c.begun(drained)
	c.cancel(id, "drain")
	drained.release(t)
	c.wait(id)
	verifyResults(t, c.results(id, 1), []proc{drained})

	id = c.begun(interrupted)
	c.cancel(id, "drain")
	c.cancel(id, "interrupt") // replaces the drain
	c.wait(id)
	r := c.results(id, 1)[0]
	if r.State != "failed" || !strings.Contains(r.Message, "interrupted: the task was canceled; the process does not run") {
		t.Errorf("interrupted: %s %q", r.State, r.Message)
	}
	if r.Status == nil || r.Status.Running || interrupted.starts() != 0 {
		t.Errorf("status is %+v, the program was started %d times", r.Status, interrupted.starts())
	}
}

// TestACancelOfAnUnreachableHostEnds cancels a task while an agent is suspended.
func TestACancelOfAnUnreachableHostEnds(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	p := f.procs.new(f.hosts(1)[0], "suspended")
	id := c.begun(p)
	f.agents[0].child.Signal(syscall.SIGSTOP)
	c.cancel(id, "interrupt")
	c.wait(id)
	if r := c.results(id, 1)[0]; r.State != "unreachable" || !strings.Contains(r.Message, "did not confirm") {
		t.Errorf("suspended: %s %q", r.State, r.Message)
	}
	f.agents[0].child.Signal(syscall.SIGCONT)
	p.release(t)
	testenv.Eventually(t, finishTimeout, func() bool {
		r := c.results(id, 1)[0]
		return r.Late && (r.State == "succeeded" || r.State == "failed")
	}, "the late result of the agent replaces it")
}
