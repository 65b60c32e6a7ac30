//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// undoneBy returns the task that reverts a task, or "".
func (c *client) undoneBy(id string) string {
	c.t.Helper()
	status, data, ok := c.call(http.MethodGet, "/v1/tasks/"+url.PathEscape(id), "", nil)
	var task struct {
		UndoneBy string `json:"undone_by"`
	}
	if !ok || status != http.StatusOK || json.Unmarshal(data, &task) != nil {
		c.t.Fatalf("task %s: %d %s", id, status, data)
	}
	return task.UndoneBy
}

// registeredStart returns the start command that is registered for a process of the tests; "" if
// it is not registered.
func (c *client) registeredStart(p proc) string {
	c.t.Helper()
	query := map[string]any{"process": map[string]any{"namespace": "e2e", "name": p.name}, "hosts": []string{p.host}}
	status, data, ok := c.call(http.MethodPost, "/v1/processes/query", "", query)
	var page struct {
		Processes []struct {
			Registration *struct {
				Process struct{ Control struct{ Start string } }
			}
		}
	}
	if !ok || status != http.StatusOK || json.Unmarshal(data, &page) != nil {
		c.t.Fatalf("processes: %d %s", status, data)
	}
	if len(page.Processes) == 0 || page.Processes[0].Registration == nil {
		return ""
	}
	return page.Processes[0].Registration.Process.Control.Start
}

// badRelease is a rollout that restarts processes with a new start command, in two stages of hosts. It
// fails on the second host.
func badRelease(all []proc) map[string]any {
	body := operation("restart", all)
	for i, o := range body["operations"].([]map[string]any) {
		control := o["process"].(map[string]any)["control"].(map[string]any)
		control["start"] = "echo new >> versions; " + control["start"].(string)
		if all[i].host == all[2].host {
			control["start"] = "exit 3"
		}
	}
	body["rollout"] = map[string]any{"ramp": []string{"3"}, "max_failures": 0, "on_failure": "undo", "undo": map[string]any{"speed": "all"}}
	return body
}

// TestAFailedReleaseIsUndoneThoughWorkersAreKilled kills workers between the steps of a release
// and its undo. In the end the registrations are as before, the processes run with their previous
// specs, and the one that was not registered before is stopped.
func TestAFailedReleaseIsUndoneThoughWorkersAreKilled(t *testing.T) {
	t.Parallel()
	const hosts, perHost = 8, 2
	f := newFleet(t, hosts)
	_, c := f.dispatcher("")
	keeper := f.worker("")
	f.waitListed(c, hosts)
	all := f.procs.grid(f.hosts(hosts), perHost, "release")
	added := all[2*perHost] // on the third host, which the release reaches
	before := slices.DeleteFunc(slices.Clone(all), func(p proc) bool { return p == added })
	started := c.submit(operation("start", before))
	c.wait(started)
	f.verifyStarted(c, started, before)
	previous := map[proc]string{}
	for _, p := range all {
		previous[p] = c.registeredStart(p)
	}
	keeper.Kill()

	id := c.submit(badRelease(all))
	for _, point := range []string{"worker.kept", "worker.undo-stored"} {
		f.worker(point).Wait(t, finishTimeout)
	}
	f.worker("")
	c.wait(id)
	testenv.Eventually(t, finishTimeout, func() bool { return c.undoneBy(id) != "" }, "the release is undone")
	undo := c.undoneBy(id)
	c.wait(undo)

	results := c.results(undo, 3*perHost)
	for _, r := range results {
		if r.State != "succeeded" && r.State != "unchanged" {
			t.Errorf("the undo on %s: %s %q", r.Host, r.State, r.Message)
		}
	}
	if last := results[len(results)-1]; last.Host != all[0].host {
		t.Errorf("the undo ends on %s, the release began on %s", last.Host, all[0].host)
	}
	for _, p := range all {
		if got := c.registeredStart(p); got != previous[p] || strings.Contains(got, "versions") {
			t.Errorf("%s on %s is registered with %q, before the release with %q", p.name, p.host, got, previous[p])
		}
		want := 1
		if p == added {
			want = 0
		}
		if running := p.running(); len(running) != want {
			t.Errorf("%s on %s runs as %v, want %d processes", p.name, p.host, running, want)
		}
	}
	f.waitFinishedEvent(undo)
	f.waitFinishedEvent(id)

	// A caller's undo of the same release is the same task.
	status, data, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/undo", "", map[string]any{})
	if !ok || status != http.StatusOK || taskID(t, data) != undo {
		t.Errorf("undo again: %d %s", status, data)
	}
}
