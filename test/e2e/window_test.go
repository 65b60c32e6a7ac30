//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// setWindows replaces the maintenance windows of the processes of the tests.
func (c *client) setWindows(windows ...map[string]any) {
	c.t.Helper()
	body := map[string]any{"policies": []any{}, "windows": append([]map[string]any{}, windows...)}
	if status, data, ok := c.call(http.MethodPut, "/v1/rollouts/e2e", "", body); !ok || status != http.StatusOK {
		c.t.Fatalf("set windows: %d %s", status, data)
	}
}

// TestARolloutWaitsForItsMaintenanceWindow closes the window of a rollout at its canary. No worker
// releases another host until the window opens, and other operations are refused until then. The
// worker that would publish the first hold dies before that; each transition must be published
// once, in its order.
func TestARolloutWaitsForItsMaintenanceWindow(t *testing.T) {
	t.Parallel()
	const hosts = 4
	f := newFleet(t, hosts)
	_, c := f.dispatcher("")
	before := f.worker("worker.before-transition")
	f.waitListed(c, hosts)
	all := f.procs.grid(f.hosts(hosts), 1, "windowed")
	id := c.submit(gradual(all, map[string]any{"ramp": []string{"1"}, "stage": map[string]any{"gates": []string{"manual"}}}))
	c.waitHeld(id, "approval")
	before.Wait(t, finishTimeout)
	c.setWindows(map[string]any{"name": "sale", "effect": "deny"})
	if status := c.approve(id, 1); status != http.StatusOK {
		t.Fatalf("approval: %d", status)
	}
	closed := f.worker("") // reads the windows for the first time
	if r := c.waitHeld(id, "window"); r.Released != 1 || !strings.Contains(r.Hold.Reason, "sale") {
		t.Errorf("while the window is closed: %+v", r)
	}
	closed.Kill()
	f.worker("")
	other := operation("start", f.procs.grid(f.hosts(1), 1, "other"))
	status, data, _ := c.call(http.MethodPost, "/v1/tasks", "", other)
	var failure struct {
		Error struct{ Code, Message string }
	}
	if status != http.StatusConflict || json.Unmarshal(data, &failure) != nil || failure.Error.Code != "outside_window" || !strings.Contains(failure.Error.Message, "sale") {
		t.Errorf("an operation outside of the window: %d %s", status, data)
	}
	if r := c.rollout(id); r.Released != 1 || r.Hold == nil {
		t.Errorf("while the window is closed: %+v", r)
	}
	c.setWindows()
	testenv.Eventually(t, finishTimeout, func() bool { return c.rollout(id).Released == hosts }, "the rollout goes on when the window is open")
	c.wait(id)
	f.verifyStarted(c, id, all)
	f.wantEvents(id, "1 accepted", "2 held approval", "3 approved ", "4 held window", "5 resumed window", "6 finished")
}
