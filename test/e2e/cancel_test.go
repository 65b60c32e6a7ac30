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

// cancel cancels a task that has not ended.
func (c *client) cancel(id, mode string) {
	c.t.Helper()
	body := map[string]any{"mode": mode, "reason": "wrong version"}
	status, data, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/cancel", "", body)
	if !ok || status != http.StatusOK {
		c.t.Fatalf("cancel of %s: %d %s", id, status, data)
	}
}

// TestACanceledTaskRunsNothingWhicheverRoleIsKilled cancels a task of which a worker has begun
// a part, and then kills the dispatcher that answered, Redis, a worker that has sent the
// requests to cancel, and an agent that has stored its decision. No command of the task runs.
func TestACanceledTaskRunsNothingWhicheverRoleIsKilled(t *testing.T) {
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
	f.worker("worker.cancel-asked").Wait(t, finishTimeout)
	f.worker("") // asks again: the requests of the dead worker may not have left it
	victim.child.Wait(t, finishTimeout)
	victim.start()
	victim.waitReady()
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

// begun returns an operation whose start command waits for release, and waits until it runs.
func (c *client) begun(p proc) (id string) {
	c.t.Helper()
	spec := p.waiting()
	control := spec["control"].(map[string]any)
	control["start"] = "touch begun; " + control["start"].(string)
	id = c.submit(map[string]any{"operations": []map[string]any{{"action": "start", "process": spec, "hosts": []string{p.host}}}})
	testenv.Eventually(c.t, finishTimeout, func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "begun"))
		return err == nil
	}, "the start command runs")
	return id
}

func TestACancelDrainsOrInterruptsWhatHasBegun(t *testing.T) {
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
