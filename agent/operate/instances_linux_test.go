package operate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// pool returns a spec of wanted instances whose start command starts only made of them. The
// command ends when all of them run their program.
func (g *rig) pool(wanted, made int) agentproto.Spec {
	return g.spec(func(s *agentproto.Spec) {
		s.Instances = wanted
		s.StartCmd = fmt.Sprintf("echo >>starts; rm -f demo.pid; for i in $(seq %d); do setsid ./demo >/dev/null 2>&1 </dev/null & echo $! >>demo.pid; done; "+
			`for p in $(cat demo.pid); do until [ "$(head -c 6 /proc/$p/cmdline)" = ./demo ]; do sleep 0.02; done; done`, made)
		s.StartCheckBeginMS, s.StartCheckEndMS = 0, 0
	})
}

func TestAllInstancesAreVerifiedWatchedAndStopped(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.pool(3, 3)
	s := g.want("start", spec, 0, "").Status
	if len(s.PIDs) != 3 || s.PID != s.PIDs[0] || s.Instances != 3 || !s.Supervised {
		t.Fatalf("status is %+v", s)
	}
	r := g.want("start", spec, agentproto.CodeAlreadyRunning, "start: process is already running")
	g.says(r, "(3/3)")
	if reported := g.engine.Processes(); len(reported) != 1 || !slices.Equal(reported[0].Status.PIDs, s.PIDs) {
		t.Fatalf("reported is %+v, want pids %v", reported, s.PIDs)
	}

	left := s.PIDs
	for _, gone := range []int{2, 0} { // first another instance, then the main one
		sigkill(t, left[gone])
		left = slices.Delete(slices.Clone(left), gone, gone+1)
		g.eventually("the missing one is emitted", func() bool { return len(emitted.of(agentproto.EventInstancesMissing)) == 3-len(left) })
		s := g.becomes(spec, "the others go on", func(s agentproto.Status) bool { return slices.Equal(s.PIDs, left) && s.Phase == "running" })
		if s.Instances != 3 || !s.Supervised {
			t.Fatalf("status is %+v", s)
		}
		r := g.want("start", spec, agentproto.CodeAlreadyRunning, "start: process is already running")
		g.says(r, fmt.Sprintf("(%d/3)", len(left)))
	}
	for _, e := range emitted.of(agentproto.EventInstancesMissing) {
		g.carriesSigkill(e)
	}
	if events := emitted.of(agentproto.EventPIDChanged); len(events) > 0 || g.starts() != 1 {
		t.Fatalf("%d starts, emitted %+v", g.starts(), events)
	}

	sigkill(t, left[0])
	again := g.becomes(spec, "all are started again when none is left", func(s agentproto.Status) bool { return s.Phase == "running" && len(s.PIDs) == 3 })
	if g.starts() != 2 || slices.Contains(again.PIDs, left[0]) {
		t.Fatalf("%d starts, pids %v", g.starts(), again.PIDs)
	}
	g.want("stop", spec, 0, "")
	if running := g.running(); len(running) > 0 {
		t.Fatalf("after the stop %v run", running)
	}
	if s := g.status(spec); s.Running || len(s.PIDs) > 0 {
		t.Fatalf("status after the stop is %+v", s)
	}
}

func TestStartThatBringsTooFewInstancesFails(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.pool(3, 2), agentproto.CodeCheckFailed, "start: post-check: 2 of 3 instances run")
	if len(r.Status.PIDs) != 2 || r.Status.Supervised {
		t.Fatalf("status is %+v", r.Status)
	}
	g.want("kill", g.pool(3, 2), 0, "")
	if running := g.running(); len(running) > 0 {
		t.Fatalf("after the kill %v run", running)
	}
}

func TestInstancesAreAdoptedByTheNextAgent(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.pool(3, 3)
	pids := g.want("start", spec, 0, "").Status.PIDs
	g.crash()
	g.write("demo.pid", "") // known instances count without the pid file
	g.open()
	for _, pid := range pids {
		if !g.engine.host.Claims.OtherHas(pid, "another key") {
			t.Fatalf("pid %d is claimed by no key before the first search", pid)
		}
	}
	s := g.becomes(spec, "all are there", func(s agentproto.Status) bool { return s.Phase == "running" && len(s.PIDs) == 3 })
	if !slices.Equal(s.PIDs, pids) || g.starts() != 1 {
		t.Fatalf("pids are %v after %d starts, want %v", s.PIDs, g.starts(), pids)
	}
	sigkill(t, pids[1])
	g.eventually("the missing one is emitted", func() bool { return len(emitted.of(agentproto.EventInstancesMissing)) == 1 })
	g.want("restart", spec, 0, "")
	s = g.status(spec)
	if len(s.PIDs) != 3 || slices.ContainsFunc(s.PIDs, func(pid int) bool { return slices.Contains(pids, pid) }) {
		t.Fatalf("after the restart pids are %v, before %v", s.PIDs, pids)
	}
}

func TestInstancesNeedAPidFile(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.pool(2, 2)
	spec.PidPath = ""
	r := g.want("start", spec, agentproto.CodeFailed, "start: bad spec: alive.instances (instance_num) 2: needs pid_path")
	if strings.Contains(r.Message, "\n") || g.starts() != 0 {
		t.Fatalf("%d starts, message %q", g.starts(), r.Message)
	}
}

func TestInstancesOfAnEarlierBootAreForgotten(t *testing.T) {
	t.Parallel()
	rec := record{recorded: recorded{Instances: []proc.Identity{{BootID: "boot before", PID: 2, Start: 1}}}, Boot: "boot before"}
	if rec.forgetBoot(); len(rec.Instances) > 0 {
		t.Fatalf("known are %v", rec.Instances)
	}
}

func TestTerminationWithoutAStopCommandEndsAllInstances(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.Health = 50 * time.Millisecond })
	spec := g.pool(3, 3)
	spec.HealthCmd, spec.HealthRestart = "[ ! -e sick ] || ! kill -0 $(cat sick)", true
	before := g.want("start", spec, 0, "").Status.PIDs
	g.write("sick", strconv.Itoa(before[0])) // only this instance is unhealthy
	s := g.becomes(spec, "all are started again", func(s agentproto.Status) bool {
		return s.Phase == "running" && len(s.PIDs) == 3 && s.PID != before[0]
	})
	for _, pid := range before {
		if slices.Contains(s.PIDs, pid) {
			t.Errorf("pid %d is left of %v, now %v run", pid, before, s.PIDs)
		}
	}
}
