//go:build linux

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestRedisRejectsItsUserWhileATaskRuns removes the rights of the roles' Redis
// user, as an administrator may do, or changes its password before the roles have
// the new one. Callers must get a 503, the log must name the reason, and accepted
// tasks must continue when the rights are restored.
func TestRedisRejectsItsUserWhileATaskRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.redis.Do(t, "ACL SETUSER fleet on >secret ~* &* +@all")
	asFleet := strings.Replace(f.redis.URL(), "//", "//fleet:secret@", 1)
	dispatcher, c := f.dispatcher("", "--redis", asFleet, "--submissions=false")
	testenv.StartChild(t, nil, f.programs.procfleet, "worker", "--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", asFleet)
	f.waitListed(c, 3)

	for name, change := range map[string]struct{ lose, regain, why string }{
		"account":  {"off", "on", "WRONGPASS"},
		"commands": {"-@write", "+@all", ""}, // reads still work
	} {
		all := f.procs.grid(f.hosts(3), 10, name)
		id := c.submit(operation("start", all))
		testenv.Eventually(t, finishTimeout, func() bool {
			ran := 0
			for _, p := range all {
				ran += p.starts()
			}
			return ran > 0
		}, "a start command ran")
		f.redis.Do(t, "ACL SETUSER fleet "+change.lose)
		f.redis.Do(t, "CLIENT KILL USER fleet")

		status, answer, ok := c.call(http.MethodPost, "/v1/tasks", "", operation("status", all[:1]))
		if !ok || status != http.StatusServiceUnavailable {
			t.Errorf("POST without %s: %d %s", name, status, answer)
		}
		if change.why != "" {
			status, answer, ok = c.call(http.MethodGet, "/readyz", "", nil)
			if !ok || status != http.StatusServiceUnavailable || !strings.Contains(string(answer), "the log says why") {
				t.Errorf("/readyz without %s: %d %s, want 503", name, status, answer)
			}
			dispatcher.WaitOutput(t, finishTimeout, change.why)
		}
		f.redis.Do(t, "ACL SETUSER fleet "+change.regain)
		c.wait(id)
		f.verifyStarted(c, id, all)
		f.killAll(c, all)
	}
}
