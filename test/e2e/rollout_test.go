//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// rollout is the progress of a rollout as the native API shows it.
type rollout struct {
	Window, Hosts, Released, Active, Waiting, Failed, Stage int
	Hold                                                    *struct{ Kind, Reason string }
}

func (c *client) rollout(id string) (r rollout) {
	c.t.Helper()
	status, data, ok := c.call(http.MethodGet, "/v1/tasks/"+url.PathEscape(id), "", nil)
	var task struct{ Rollout *rollout }
	if !ok || status != http.StatusOK || json.Unmarshal(data, &task) != nil || task.Rollout == nil {
		c.t.Fatalf("task %s: %d %s", id, status, data)
	}
	return *task.Rollout
}

// waitHeld waits until a rollout has a hold.
func (c *client) waitHeld(id, kind string) (r rollout) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		r = c.rollout(id)
		return r.Hold != nil
	}, "the rollout is held")
	if r.Hold.Kind != kind {
		c.t.Fatalf("the rollout is held by %s: %+v", r.Hold.Kind, r)
	}
	return r
}

// gradual is [operation] with a rollout policy. The start commands record when they begin and end.
func gradual(all []proc, policy map[string]any) map[string]any {
	body := operation("start", all)
	for _, o := range body["operations"].([]map[string]any) {
		control := o["process"].(map[string]any)["control"].(map[string]any)
		control["start"] = "date +%s%N >> times; " + control["start"].(string) + "; sleep 0.3; date +%s%N >> times"
	}
	if policy != nil {
		body["rollout"] = policy
	}
	return body
}

// overlap returns the largest number of hosts whose start commands ran at the same moment.
func overlap(t *testing.T, all []proc) (most int) {
	t.Helper()
	type edge struct {
		at    int64
		host  string
		delta int
	}
	var edges []edge
	for _, p := range all {
		data, err := os.ReadFile(filepath.Join(p.dir, "times"))
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range strings.Fields(string(data)) {
			at, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			edges = append(edges, edge{at, p.host, 1 - 2*(i%2)})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return int(a.at - b.at) })
	running := map[string]int{}
	for _, e := range edges {
		if running[e.host] += e.delta; running[e.host] == 0 {
			delete(running, e.host)
		}
		most = max(most, len(running))
	}
	return most
}

// TestARolloutKeepsItsWindowWhicheverRoleIsKilled kills the dispatcher, workers at each step of a
// release, and Redis. The window and those of the racks are never exceeded, no host is left out, and no
// command runs twice.
func TestARolloutKeepsItsWindowWhicheverRoleIsKilled(t *testing.T) {
	t.Parallel()
	const hosts, perHost, window, inRack = 10, 2, 3, 2
	f := newFleet(t, hosts)
	dying, first := f.dispatcher("", "--submissions=false")
	_, c := f.dispatcher("", "--submissions=false")
	keeper := f.worker("") // stores the first announcements
	f.waitListed(c, hosts)
	keeper.Kill()
	status, answer, ok := c.call(http.MethodPut, "/v1/labels", "", map[string]any{"hosts": f.hosts(hosts / 2), "set": map[string]string{"rack": "r1"}})
	if !ok || status != http.StatusOK {
		t.Fatalf("label hosts: %d %s", status, answer)
	}
	all := f.procs.grid(f.hosts(hosts), perHost, "gradual")
	racks := [][]proc{all[:len(all)/2], all[len(all)/2:]}
	id := first.submit(gradual(all, map[string]any{
		"max_concurrency": window, "zones": map[string]any{"by": "label", "label": "rack", "max_concurrency": inRack},
	}))
	dying.Kill()
	points := []string{"worker.granted", "worker.registered", "worker.asked"}
	if testenv.IsLong() { // see TestKilledAtCriticalPoints for a task without a rollout
		points = append(points, "worker.begun", "worker.collected")
	}
	for _, point := range points {
		f.worker(point).Wait(t, finishTimeout)
	}
	f.worker("")
	testenv.Eventually(t, finishTimeout, func() bool { return c.rollout(id).Released > window }, "the window moves")
	f.redis.Stop(t)
	f.redis.Restart(t)
	c.wait(id)
	f.verifyStarted(c, id, all)
	if most := overlap(t, all); most > window {
		t.Errorf("commands ran on %d hosts at the same moment, the window is %d", most, window)
	}
	for _, rack := range racks {
		if most := overlap(t, rack); most > inRack {
			t.Errorf("commands ran on %d hosts of %s at the same moment, %d may", most, rack[0].host, inRack)
		}
	}
	if r := c.rollout(id); r.Released != hosts || r.Active != 0 || r.Failed != 0 || r.Window != window {
		t.Errorf("at the end: %+v", r)
	}
	f.waitFinishedEvent(id)
}

// TestABadSpecIsStoppedAtTheCanaryAndUndone starts 40 processes on 20 hosts with a spec that fails: only the
// first host runs it, and after the undo the registrations are as before. A good spec goes on
// after the approval of its canary.
func TestABadSpecIsStoppedAtTheCanaryAndUndone(t *testing.T) {
	t.Parallel()
	const hosts, perHost = 20, 2
	f := newFleet(t, hosts)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, hosts)
	all := f.procs.grid(f.hosts(hosts), perHost, "canary")
	policy := map[string]any{"ramp": []string{"1", "25%", "100%"}, "max_failures": 0, "stage": map[string]any{"gates": []string{"manual"}}}

	bad := gradual(all, policy)
	for _, o := range bad["operations"].([]map[string]any) {
		o["process"].(map[string]any)["control"].(map[string]any)["start"] = "echo ran >> bad; exit 3"
	}
	id := c.submit(bad)
	if r := c.waitHeld(id, "budget"); r.Released != 1 || r.Failed != 1 || r.Hosts != hosts {
		t.Errorf("after the failure of the canary: %+v", r)
	}
	status, data, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/undo", "", map[string]any{"reason": "a bad release"})
	if !ok || status != http.StatusOK {
		t.Fatalf("undo: %d %s", status, data)
	}
	c.wait(taskID(t, data))
	c.wait(id)
	live := programs()
	for _, p := range all {
		_, err := os.Stat(filepath.Join(p.dir, "bad"))
		if canary := p.host == all[0].host; canary != (err == nil) {
			t.Errorf("the bad command on %s: %v", p.host, err)
		}
		if c.registered(p.host, p.name) || len(live.of(p)) > 0 {
			t.Errorf("%s on %s is registered, or runs as %v", p.name, p.host, live.of(p))
		}
	}

	id = c.submit(gradual(all, policy))
	if r := c.waitHeld(id, "approval"); r.Released != 1 || r.Stage != 1 {
		t.Errorf("after the canary: %+v", r)
	}
	if status := c.approve(id, 2); status != http.StatusConflict {
		t.Errorf("approval of a stage that has not ended: %d", status)
	}
	if status := c.approve(id, 1); status != http.StatusOK {
		t.Fatalf("approval: %d", status)
	}
	testenv.Eventually(t, finishTimeout, func() bool { return c.rollout(id).Stage == 2 && c.rollout(id).Hold != nil }, "the second stage waits for an approval")
	if r := c.rollout(id); r.Released != hosts/4 {
		t.Errorf("after the second stage: %+v", r)
	}
	if status := c.approve(id, 2); status != http.StatusOK {
		t.Fatalf("approval: %d", status)
	}
	c.wait(id)
	f.verifyStarted(c, id, all)
}

// TestAStageWhoseProcessesCrashIsHeld starts processes that crash after their start has succeeded: the
// automatic gate holds the rollout. The stages of another rollout, whose processes run, pass.
func TestAStageWhoseProcessesCrashIsHeld(t *testing.T) {
	t.Parallel()
	const hosts = 2
	f := newFleet(t, hosts)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, hosts)
	policy := map[string]any{"ramp": []string{"1"}, "stage": map[string]any{"bake": "4s", "gates": []string{"auto"}}}
	crashing, healthy := f.procs.grid(f.hosts(hosts), 1, "crashing"), f.procs.grid(f.hosts(hosts), 1, "healthy")
	bad := gradual(crashing, policy)
	for _, o := range bad["operations"].([]map[string]any) {
		control := o["process"].(map[string]any)["control"].(map[string]any)
		control["start"] = strings.Replace(control["start"].(string), " 3600 ", " 3 ", 1)
	}
	crashed, passed := c.submit(bad), c.submit(gradual(healthy, policy))
	if r := c.waitHeld(crashed, "unhealthy"); r.Released != 1 || !strings.Contains(r.Hold.Reason, crashing[0].host) {
		t.Errorf("after the crash: %+v", r)
	}
	status, answer, ok := c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(crashed)+"/resume", "", map[string]any{"hold": "unhealthy"})
	if !ok || status != http.StatusOK {
		t.Errorf("resume: %d %s", status, answer)
	}
	testenv.Eventually(t, finishTimeout, func() bool { return c.rollout(crashed).Released == hosts }, "the resumed rollout goes on")
	c.wait(passed)
	f.verifyStarted(c, passed, healthy)
}

func (c *client) approve(id string, stage int) (status int) {
	c.t.Helper()
	status, _, _ = c.call(http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+"/approve", "", map[string]any{"stage": stage})
	return status
}

// registered reports whether a process of the tests is registered on a host.
func (c *client) registered(host, name string) bool {
	c.t.Helper()
	query := map[string]any{"process": map[string]any{"namespace": "e2e", "name": name}, "hosts": []string{host}}
	status, data, ok := c.call(http.MethodPost, "/v1/processes/query", "", query)
	var page struct {
		Processes []struct{ Registration *struct{} }
	}
	if !ok || status != http.StatusOK || json.Unmarshal(data, &page) != nil {
		c.t.Fatalf("processes: %d %s", status, data)
	}
	return len(page.Processes) > 0 && page.Processes[0].Registration != nil
}
