//go:build linux

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// queued is [gradual] with a queue.
func queued(all []proc, queue, policy map[string]any) map[string]any {
	body := gradual(all, policy)
	body["queue"] = queue
	return body
}

func (c *client) waitWaiting(id string, n int) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		r := c.rollout(id)
		return r.Waiting == n && r.Active == 0 && r.Released == r.Hosts
	}, "all other hosts have ended")
}

// TestHostsThatWereAwayGetTheirOperationsOnce stops agents before their hosts are operated, and kills
// workers at each step: when they find a host away, and when they release it again. Each
// start command runs once, within the window. Operations that a later task replaces are canceled, and in
// the long form those on a host that does not return expire.
func TestHostsThatWereAwayGetTheirOperationsOnce(t *testing.T) {
	t.Parallel()
	const hosts, away, window = 6, 3, 2
	f := newFleet(t, hosts)
	_, c := f.dispatcher("")
	keeper := f.worker("") // stores the first announcements
	f.waitListed(c, hosts)
	for _, a := range f.agents[:away] {
		a.stop()
	}
	testenv.Eventually(t, finishTimeout, func() bool { return len(c.hosts()) == hosts-away }, "the absence is known")
	keeper.Kill()

	never := f.procs.new("0:10.98.0.1", "never")
	expires := c.submit(queued([]proc{never}, map[string]any{"for": "1m"}, nil))
	all := f.procs.grid(f.hosts(hosts), 2, "queued")
	id := c.submit(queued(all, map[string]any{"for": "1h"}, map[string]any{"max_concurrency": window}))
	for range unlessLong(1, 2) {
		f.worker("worker.away").Wait(t, finishTimeout)
	}
	worker := f.worker("")
	c.waitWaiting(id, away)
	again := f.procs.new(f.agents[0].host(), "replaced")
	replaced := c.submit(queued([]proc{again}, map[string]any{"for": "1h", "coalesce": true}, nil))
	c.waitWaiting(replaced, 1)
	later := operation("stop", []proc{again})
	later["queue"] = map[string]any{"for": "1h"}
	stop := c.submit(later)
	if end := c.wait(replaced); end.Counts["cancelled"] != 1 {
		t.Errorf("the operation that a later task replaces: %v", end.Counts)
	}
	if r := c.results(replaced, 1)[0]; !strings.Contains(r.Message, stop) {
		t.Errorf("message %q, want the id of task %s", r.Message, stop)
	}

	worker.Kill()
	dying := f.worker("worker.granted")
	for _, a := range f.agents[:away] {
		a.start()
		a.waitReady()
	}
	dying.Wait(t, finishTimeout)
	f.worker("")
	c.wait(id)
	f.verifyStarted(c, id, all)
	if most := overlap(t, all); most > window {
		t.Errorf("%d hosts at work, window %d", most, window)
	}
	if end := c.wait(stop); end.Counts["failed"] != 1 && end.Counts["unchanged"] != 1 || again.starts() != 0 {
		t.Errorf("the later task: %v, %d starts of the replaced one", end.Counts, again.starts())
	}
	f.wantEvents(id, "1 accepted", "2 settled ", "3 finished")

	if !testenv.IsLong() { // a queue is for at least a minute
		return
	}
	if end := c.wait(expires); end.Counts["unreachable"] != 1 {
		t.Errorf("the operation on a host that does not return: %v", end.Counts)
	}
	if r := c.results(expires, 1)[0]; r.Refusal != "expired" {
		t.Errorf("refusal %q, message %q", r.Refusal, r.Message)
	}
}

// TestAQueueIsOnlyForOperations sends queues that cannot be.
func TestAQueueIsOnlyForOperations(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	p := f.procs.new("0:10.98.0.1", "asked")
	for field, body := range map[string]map[string]any{
		"queue":     operation("status", []proc{p}),
		"queue.for": operation("start", []proc{p}),
	} {
		body["queue"] = map[string]any{"for": "30s"}
		status, answer, ok := c.call(http.MethodPost, "/v1/tasks", "", body)
		if !ok || status != http.StatusBadRequest || !strings.Contains(string(answer), `"`+field+`"`) {
			t.Errorf("%s: %d %s", field, status, answer)
		}
	}
}
