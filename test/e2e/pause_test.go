//go:build linux

package e2e

import (
	"net/http"
	"net/url"
	"testing"
)

// control pauses or resumes a task.
func (c *client) control(id, transition string) (status int) {
	c.t.Helper()
	status, data, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/"+transition, "", map[string]any{"reason": "test"})
	if !ok || status != http.StatusOK && status != http.StatusConflict {
		c.t.Fatalf("%s of %s: %d %s", transition, id, status, data)
	}
	return status
}

// TestAPausedTaskRunsNothingWhicheverRoleIsKilled pauses a task before any part of it
// began, and then kills the dispatcher that answered, Redis, and a worker in the middle of
// the resumed task. Nothing of the task runs while it is paused, and afterwards each
// command runs exactly once.
func TestAPausedTaskRunsNothingWhicheverRoleIsKilled(t *testing.T) {
	t.Parallel()
	const hosts, perHost = 3, 4
	f := newFleet(t, hosts)
	dying, first := f.dispatcher("", "--submissions=false")
	_, c := f.dispatcher("", "--submissions=false")
	keeper := f.worker("") // stores the first announcements
	f.waitListed(c, hosts)
	keeper.Kill()

	all := f.procs.grid(f.hosts(hosts), perHost, "paused")
	id := c.submit(operation("start", all))
	if status := first.control(id, "pause"); status != http.StatusOK {
		t.Fatalf("pause: %d", status)
	}
	dying.Kill()
	f.redis.Stop(t)
	f.redis.Restart(t)

	// The chunks of the second task are behind those of the paused one.
	dropping := f.worker("")
	c.wait(c.submit(operation("start", f.procs.grid(f.hosts(hosts), 1, "beside"))))
	if shown := c.task(id); shown.State == "finished" || shown.Counts["pending"] != len(all) {
		t.Fatalf("the paused task is %+v", shown)
	}
	for _, p := range all {
		if n := p.starts(); n != 0 {
			t.Errorf("%s was started %d times while its task was paused", p.name, n)
		}
	}
	dropping.Kill()

	if status := c.control(id, "resume"); status != http.StatusOK {
		t.Fatalf("resume: %d", status)
	}
	f.worker("worker.asked").Wait(t, finishTimeout)
	f.worker("")
	c.wait(id)
	f.verifyStarted(c, id, all)
	if status := c.control(id, "pause"); status != http.StatusConflict {
		t.Errorf("pause of a finished task: %d", status)
	}
}
