package faults

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var recoveryRows = []row{
	{"F40_agent_killed_at_every_point", killedAtEveryPoint},
	{"F41_daemon_comes_up_while_the_agent_is_down", comesUpMeanwhile},
	{"F42_agent_restart_with_a_hundred_processes", adoptsAHundred},
	{"F43_agent_restart_with_ten_of_a_hundred_dead", tenOfAHundredDead},
	{"F51_command_delivered_many_times", deliveredManyTimes},
	{"F52_operation_id_used_again", idUsedAgain},
	{"F53_commands_out_of_order_and_too_late", outOfOrder},
}

func killedAtEveryPoint(t *testing.T, h *agenttest.Host) {
	for _, point := range []string{
		"agent.received", "agent.before-exec", "agent.after-spawn", "agent.before-done", "agent.after-done", "agent.after-receipt",
	} {
		p := h.Program()
		h.Start(agenttest.CrashAt(point))
		c := h.NewCommand("start", p.Spec)
		h.Deliver(c)
		h.Died()
		h.Start()
		id := h.Submit(c)[0] // like a worker that got no reply
		first := h.Result(id)
		h.Submit(c)
		h.Stop() // the agent sends pending results
		for _, r := range h.Heard(id) {
			if diff := cmp.Diff(first.Message, r.Message); diff != "" || r.Code != first.Code {
				t.Errorf("%s: two outcomes: %+v and %+v", point, first, r)
			}
		}
		if n := p.Starts(); n > 1 {
			t.Errorf("%s: the start command ran %d times", point, n)
		}
		want := 0
		if first.Code == agentproto.CodeSuccess {
			want = 1
		}
		// The agent may have observed the launcher, which the daemon replaces.
		testenv.Eventually(t, agenttest.Patience, func() bool { return len(p.Running()) == want },
			fmt.Sprintf("%s: %d processes run after result %d: %s", point, want, first.Code, first.Message))
	}
}

func comesUpMeanwhile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "echo start >>starts; until [ -e go ]; do sleep 0.1; done; exec ./demo -d -pid demo.pid >/dev/null 2>&1"
	c := h.NewCommand("start", p.Spec)
	id := h.Submit(c)[0]
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() == 1 }, "the start command runs")
	h.Agent.Kill()
	p.Write("go", "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.PID() != 0 }, "the daemon is up")
	h.Start()
	r := h.Check(h.Result(id), agentproto.CodeSuccess, "")
	h.Says(r, "recovered")
	p.WaitRunning(1)
	if s := h.Status(p.Spec); !s.Supervised || s.PID != p.PID() || p.Starts() != 1 {
		t.Errorf("%d starts, status %+v", p.Starts(), s)
	}
}

// hundred starts a hundred supervised daemons.
func hundred(t *testing.T, h *agenttest.Host) (programs []*agenttest.Program, pids []int) {
	t.Helper()
	for range 100 {
		programs = append(programs, h.Sleeper())
	}
	for i, r := range h.DoAll("start", agenttest.Specs(programs)) {
		h.Check(r, agentproto.CodeSuccess, "")
		pids = append(pids, programs[i].PID())
		if r.Status.PID != pids[i] {
			t.Errorf("the pid file names %d, not %d: %s", pids[i], r.Status.PID, r.Status.Evidence)
		}
	}
	return programs, pids
}

func adoptsAHundred(t *testing.T, h *agenttest.Host) {
	h.Start()
	programs, pids := hundred(t, h)
	h.Agent.Kill()
	h.Start()
	for i, r := range h.DoAll("status", agenttest.Specs(programs)) {
		if s := r.Status; s == nil || s.PID != pids[i] || !s.Supervised || programs[i].Starts() != 1 {
			t.Errorf("pid was %d, %d starts, status is %+v", pids[i], programs[i].Starts(), s)
		}
	}
	h.End(pids[0])
	h.Becomes(programs[0].Spec, "an adopted process is started again", func(s agentproto.Status) bool {
		return s.Running && s.PID != pids[0] && programs[0].Starts() == 2
	})
}

func tenOfAHundredDead(t *testing.T, h *agenttest.Host) {
	h.Start()
	programs, pids := hundred(t, h)
	h.Agent.Kill()
	dead := pids[:10]
	for _, pid := range dead {
		h.End(pid)
	}
	h.Start()
	for _, p := range programs[:10] {
		h.Becomes(p.Spec, "what died is started again", func(s agentproto.Status) bool { return s.Running && s.Phase == "running" })
	}
	for i, p := range programs {
		died := slices.Contains(dead, pids[i])
		starts := 1
		if died {
			starts = 2
		}
		if changed := p.PID() != pids[i]; changed != died || p.Starts() != starts {
			t.Errorf("died %v, pid was %d and is %d after %d starts", died, pids[i], p.PID(), p.Starts())
		}
	}
}

func deliveredManyTimes(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "echo start >>starts; until [ -e go ]; do sleep 0.1; done; exec ./demo -d -pid demo.pid >/dev/null 2>&1"
	c := h.NewCommand("start", p.Spec)
	var together sync.WaitGroup
	for range 100 {
		copied := *c // a delivery sets the limit of acceptance
		together.Go(func() { h.Submit(&copied) })
	}
	together.Wait()
	id := agenttest.ID{Task: c.Task}
	if heard := h.Heard(id); len(heard) != 0 {
		t.Errorf("results while the operation runs: %+v", heard)
	}
	p.Write("go", "")
	first := h.Check(h.Result(id), agentproto.CodeSuccess, "")
	h.Submit(c)
	h.Agent.Kill()
	h.Start()
	h.Submit(c)
	for _, r := range h.Heard(id) {
		if r.Code != first.Code || r.Message != first.Message {
			t.Errorf("two outcomes: %+v and %+v", first, r)
		}
	}
	p.WaitRunning(1)
	if n := p.Starts(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func idUsedAgain(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	c := h.NewCommand("start", p.Spec)
	h.Check(h.Result(h.Submit(c)[0]), agentproto.CodeSuccess, "")
	c.Items[0].Action = "kill"
	reply := h.Deliver(c)
	if len(reply.Items) != 1 || reply.Items[0].Result == nil {
		t.Fatalf("reply is %+v", reply)
	}
	h.Says(h.Check(*reply.Items[0].Result, agentproto.CodeFailed, "kill:"), "operation id reused")
	if p.PID() == 0 {
		t.Error("the process was killed")
	}
}

func outOfOrder(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	early := h.NewCommand("stop", p.Spec)
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Says(h.Check(h.Result(h.Submit(early)[0]), agentproto.CodeFailed, "stop:"), "superseded")

	late := h.NewCommand("stop", p.Spec)
	late.AcceptBefore = late.Sent
	reply, err := h.Ask(late)
	if err != nil || reply.Refused != agentproto.RefusedExpired {
		t.Errorf("reply is %+v, %v", reply, err)
	}
	overdue := h.NewCommand("stop", p.Spec)
	overdue.NotAfter = overdue.Sent
	h.Says(h.Check(h.Result(h.Submit(overdue)[0]), agentproto.CodeFailed, "stop:"), "expired")
	if s := h.Status(p.Spec); !s.Supervised || !s.Running || p.Starts() != 1 {
		t.Errorf("status is %+v", s)
	}

	// The command was accepted and not begun. The host's clock does not show that
	// three days pass.
	h.Agent.Kill()
	h.Start(agenttest.CrashAt("agent.received"))
	expired := h.NewCommand("stop", p.Spec)
	h.Deliver(expired)
	h.Died()
	h.GetAhead(72 * time.Hour)
	h.Start()
	h.Says(h.Check(h.Result(agenttest.ID{Task: expired.Task}), agentproto.CodeFailed, "stop:"), "not executed")
	p.WaitRunning(1) // the stop expired three days ago
}
