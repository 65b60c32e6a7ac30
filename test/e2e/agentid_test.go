//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// byID returns an operation on the host of an agent id.
func byID(action string, p proc, agentID string) map[string]any {
	return map[string]any{"action": action, "process": p.spec(), "agents": []string{agentID}}
}

// TestAClaimedAgentIDReceivesNoCommands checks that a host which announces the agent
// id of another host receives no command for that id. This holds whether or not the
// other host is connected, and whether or not a caller bound the id. The worker
// reports the host.
func TestAClaimedAgentIDReceivesNoCommands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	worker := f.worker("")
	f.waitListed(c, 2)
	owner, thief := f.agents[0], f.agents[1]
	const id, boundID = "02000000005254000b3dc9168005", "02000000005254000b3dc9168006"

	thief.stop()
	thief.args = []string{"--agent-id", id}
	thief.start()
	thief.waitReady()
	thief.child.WaitOutput(t, startTimeout, "re-enroll with --agent-id")
	worker.WaitOutput(t, startTimeout, "agent id refused")
	var events json.RawMessage
	testenv.Eventually(t, startTimeout, func() bool {
		c.get("/v1/events?kind=agent_id_refused", &events)
		return strings.Contains(string(events), thief.host()) && strings.Contains(string(events), id)
	}, "the refused claim is an event of the host")

	p := f.procs.new(thief.host(), "claimed")
	refused := c.wait(c.submit(byID("start", p, id)))
	if r := c.results(refused.ID, 1)[0]; r.Code != 117 || p.starts() != 0 {
		t.Errorf("a command to the claimed id: %+v, started %d times", r, p.starts())
	}
	if done := c.wait(c.submit(operation("status", []proc{p}))); done.Counts["succeeded"]+done.Counts["unchanged"] != 1 {
		t.Errorf("the host by its address: %v", done.Counts)
	}

	// A binding refers to its host, regardless of announcements.
	binding := map[string]any{"bindings": []any{map[string]any{"host": owner.host(), "agent_id": boundID}}}
	if status, answer, ok := c.call(http.MethodPost, "/v1/agents/bindings", "", binding); !ok || status != http.StatusOK {
		t.Fatalf("bind: %d %s", status, answer)
	}
	thief.stop()
	thief.args = []string{"--agent-id", boundID}
	f.keys.enrollAs(thief.host(), boundID, thief.identity)
	thief.start()
	thief.waitReady()
	bound := f.procs.new(owner.host(), "bound")
	if done := c.wait(c.submit(byID("start", bound, boundID))); done.Counts["succeeded"] != 1 || bound.starts() != 1 {
		t.Errorf("by the bound id: %+v", c.results(done.ID, 1))
	}
	if r := c.onlyHost(t, byID("status", bound, boundID)); r.Host != owner.host() {
		t.Errorf("the bound id refers to host %s", r.Host)
	}

	// The id belongs to the host that was enrolled with it.
	owner.stop()
	f.keys.enrollAs(owner.host(), id, owner.identity)
	owner.start()
	owner.waitReady()
	testenv.Eventually(t, startTimeout, func() bool {
		return c.onlyHost(t, byID("status", bound, id)).Host == owner.host()
	}, "the id leads to the host that holds it")
}

// TestAnAgentIDOfTwoHostsLeadsToNeither checks that the id is ambiguous until one
// of the two agents has stopped.
func TestAnAgentIDOfTwoHostsLeadsToNeither(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 2)
	const id = "02000000005254000b3dc9168005"
	for _, a := range f.agents {
		a.stop()
		f.keys.enrollAs(a.host(), id, a.identity)
		a.start()
		a.waitReady()
	}
	p := f.procs.new(f.agents[0].host(), "claimed")
	var r result
	testenv.Eventually(t, startTimeout, func() bool {
		r = c.onlyHost(t, byID("status", p, id))
		return strings.Contains(r.Message, "is claimed by hosts")
	}, "both claims are known")
	if r.Code != 65535 || !strings.Contains(r.Message, f.agents[0].host()) || !strings.Contains(r.Message, f.agents[1].host()) {
		t.Errorf("while both claim it: %+v", r)
	}
	if done := c.wait(c.submit(byID("start", p, id))); done.Counts["failed"] != 1 || p.starts() != 0 {
		t.Errorf("a start: %v, started %d times", done.Counts, p.starts())
	}
	var events json.RawMessage
	testenv.Eventually(t, startTimeout, func() bool {
		c.get("/v1/events?kind=agent_id_conflict", &events)
		return strings.Contains(string(events), f.agents[0].host()) && strings.Contains(string(events), f.agents[1].host())
	}, "the conflict is an event of both hosts")

	f.agents[1].stop()
	if done := c.wait(c.submit(byID("start", p, id))); done.Counts["succeeded"] != 1 || p.starts() != 1 {
		t.Errorf("after one was stopped: %v, %+v", done.Counts, c.results(done.ID, 1))
	}
}

// onlyHost submits an operation of one item and returns its result.
func (c *client) onlyHost(t *testing.T, op map[string]any) result {
	t.Helper()
	return c.results(c.wait(c.submit(op)).ID, 1)[0]
}
