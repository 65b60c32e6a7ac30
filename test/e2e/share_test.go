//go:build linux

package e2e

import (
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestWorkersShareATaskAndOneDies runs one task on two, then on four workers. A
// killed worker may only delay the task.
func TestWorkersShareATaskAndOneDies(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	first := f.worker("")
	f.worker("")
	f.simulate(2000, "100ms")
	f.waitListed(c, 1000)
	body := map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(2000)}

	id := c.submit(body)
	testenv.Eventually(t, finishTimeout, func() bool { return c.task(id).Counts["pending"] < 2000 }, "delivery has begun")
	first.Kill()
	f.worker("")
	f.worker("")
	f.worker("")
	if end := c.wait(id); end.Counts["succeeded"] != 2000 {
		t.Errorf("after a worker died: %v", end.Counts)
	}
	id = c.submit(body)
	if end := c.wait(id); end.Counts["succeeded"] != 2000 {
		t.Errorf("with four workers: %v", end.Counts)
	}
	f.waitFinishedEvent(id)
}

// TestHostsWithoutAgentAre117 checks a task in which 300 of 1,000 hosts have no
// agent.
func TestHostsWithoutAgentAre117(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	f.worker("")
	f.simulate(700, "0s")
	f.waitListed(c, 700)
	id := c.submit(map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(1000)})
	end := c.wait(id)
	if end.Counts["succeeded"] != 700 || end.Counts["unreachable"] != 300 {
		t.Fatalf("counts %v, want 700 succeeded and 300 unreachable", end.Counts)
	}
	for _, r := range c.results(id, 1000) {
		if r.State == "unreachable" && (r.Code != 117 || r.Message == "") {
			t.Errorf("%s: %d %q", r.Host, r.Code, r.Message)
		}
	}
}

// TestSuspendedAgentRejectsExpiredCommands suspends an agent while a command waits
// for it. The server gives up the host, and the agent resumes.
func TestSuspendedAgentRejectsExpiredCommands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 2)
	frozen, awake := f.agents[0], f.agents[1]
	frozen.child.Freeze(t)
	all := []proc{f.procs.new(frozen.host(), "frozen"), f.procs.new(awake.host(), "awake")}
	id := c.submit(operation("start", all))
	end := c.wait(id)
	if end.Counts["unreachable"] != 1 || end.Counts["succeeded"] != 1 {
		t.Fatalf("counts %v, want one unreachable and one succeeded", end.Counts)
	}
	frozen.child.Signal(syscall.SIGCONT)

	// When the resumed agent has executed a new command, it has already rejected
	// the command that waited.
	again := []proc{f.procs.new(frozen.host(), "afterwards")}
	if end := c.wait(c.submit(operation("start", again))); end.Counts["succeeded"] != 1 {
		t.Fatalf("after the agent resumed: %v", end.Counts)
	}
	if all[0].starts() != 0 {
		t.Error("the agent ran a command that the server had given up")
	}
	for _, r := range c.results(id, 2) {
		if r.Host == frozen.host() && r.State != "unreachable" {
			t.Errorf("the result of the suspended host became %s %q", r.State, r.Message)
		}
	}
}

// TestSupersededStopDoesNotUndoALaterStart kills the worker that has a stop in
// delivery, so that a later start reaches the agent first.
func TestSupersededStopDoesNotUndoALaterStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	keeper := f.worker("")
	f.waitListed(c, 1)
	p := f.procs.new(f.agents[0].host(), "overtaken")
	if end := c.wait(c.submit(operation("start", []proc{p}))); end.Counts["succeeded"] != 1 {
		t.Fatalf("start: %v", end.Counts)
	}
	keeper.Signal(syscall.SIGTERM)
	keeper.Wait(t, startTimeout)

	dying := f.worker("worker.begun")
	stop := c.submit(operation("stop", []proc{p}))
	dying.Wait(t, finishTimeout)
	start := c.submit(operation("start", []proc{p}))
	f.worker("")
	if end := c.wait(start); end.Counts["unchanged"] != 1 {
		t.Fatalf("the later start: %v, want unchanged: it was running", end.Counts)
	}
	c.wait(stop)
	r := c.results(stop, 1)[0]
	if r.State != "failed" || r.Code != 65535 {
		t.Errorf("the overtaken stop: %s %d %q, want refused as superseded", r.State, r.Code, r.Message)
	}
	if p.pid() == 0 || p.starts() != 1 {
		t.Errorf("the process: pid %d, %d starts; the overtaken stop undid the start", p.pid(), p.starts())
	}
}

// simulate starts agents that report succeeded for every command; agent i has the
// host 10.(i>>16).(i>>8&255).(i&255).
func (f *fleet) simulate(agents int, latency string) {
	f.t.Helper()
	child := testenv.StartChild(f.t, nil, testenv.BuildBinary(f.t, "./cmd/procfleet-bench"), "simulate", "--agents", strconv.Itoa(agents),
		"--cloud", "0", "--latency", latency, "--nats", f.broker.URL, "--fleet-key", f.keys.file)
	child.WaitOutput(f.t, startTimeout, "ready "+strconv.Itoa(agents))
}

func simulatedHosts(n int) []string {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = "0:" + net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)).String()
	}
	return hosts
}

func simulatedSpec() map[string]any {
	return map[string]any{
		"namespace": "e2e", "name": "sim", "proc_name": "sim", "setup_path": "/opt/sim",
		"control": map[string]any{"start": "./start.sh"}, "alive": map[string]any{"op_timeout": "10s"},
	}
}
