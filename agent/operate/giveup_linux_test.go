package operate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// emitted waits for an event of a kind and returns it.
func (g *rig) emitted(l *eventLog, kind string) agentproto.Event {
	g.t.Helper()
	g.eventually("it is emitted: "+kind, func() bool { return len(l.of(kind)) > 0 })
	e := l.of(kind)[0]
	if e.Key != g.dir || e.ProcName != demoName || e.Message == "" {
		g.t.Fatalf("event is %+v", e)
	}
	return e
}

func TestWhatWasGivenUpIsTriedNowAndThen(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit, c.Timing.ProbeInterval = emitted.add, 200*time.Millisecond })
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; [ ! -e broken ] || { echo out of order; exit 1; }; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null & " + pidLives
		s.StartRetries, s.StartIntervalMS = 1, 10
	})
	pid := g.want("start", spec, 0, "").Status.PID
	g.write("broken", "")
	sigkill(t, pid)
	e := g.emitted(&emitted, agentproto.EventGaveUp)
	if e.Details["reason"] != "retries" || e.Details["output"] != "out of order\n" || e.PID != 0 && e.PID != pid {
		t.Fatalf("event is %+v", e)
	}
	if s := g.status(spec); s.Phase != "fatal" && s.Phase != "starting" || s.LastExit == nil {
		t.Fatalf("status is %+v", s)
	}
	g.eventually("it is tried", func() bool { return g.starts() > 1+2 })
	if err := os.Remove(filepath.Join(g.dir, "broken")); err != nil {
		t.Fatal(err)
	}
	g.want("supervise", spec, 0, "")
	s := g.becomes(spec, "it is back", func(s agentproto.Status) bool { return s.Phase == "running" })
	if s.Restarts == 0 || len(emitted.of(agentproto.EventGaveUp)) != 1 {
		t.Fatalf("status is %+v, emitted %+v", s, emitted.of(agentproto.EventGaveUp))
	}
	g.emitted(&emitted, agentproto.EventRestarted)
}

func TestHostThatIsNotSetUpIsGivenUpAfterTwoAttempts(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(*testing.T, *rig){
		"folder is missing": func(t *testing.T, g *rig) {
			t.Helper()
			if err := os.Rename(g.dir, g.dir+".away"); err != nil {
				t.Fatal(err)
			}
		},
		"program is not executable": func(t *testing.T, g *rig) {
			t.Helper()
			g.write("start.sh", "")
			if err := os.Chmod(filepath.Join(g.dir, "start.sh"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var emitted eventLog
			g := newRig(t, func(c *Config) { c.Emit = emitted.add })
			g.script("start.sh", "echo >>starts; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null & "+pidLives)
			spec := g.spec(func(s *agentproto.Spec) { s.StartCmd, s.StartRetries, s.StartIntervalMS = "./start.sh", 50, 10 })
			pid := g.want("start", spec, 0, "").Status.PID
			breaks(t, g)
			sigkill(t, pid)
			if e := g.emitted(&emitted, agentproto.EventGaveUp); e.Details["reason"] != "setup" || e.Details["failures"] != 1+2 {
				t.Fatalf("event is %+v", e)
			}
			g.becomes(spec, "its status says why", func(s agentproto.Status) bool {
				return s.Phase == "fatal" && strings.HasPrefix(s.Evidence, "given up: the host is not set up")
			})
			if len(emitted.of(agentproto.EventStartsPaused)) != 0 {
				t.Fatal("emitted that the host could not run another process")
			}
		})
	}
}

func TestStartsWaitWhileTheHostIsExhausted(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit, c.Timing.HostPause = emitted.add, time.Second })
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 1 })
	pid := g.want("start", spec, 0, "").Status.PID
	paused := time.Now()
	g.engine.delayStarts("no more processes")
	g.engine.delayStarts("no more processes")
	sigkill(t, pid)
	g.eventually("it is started again", func() bool { return g.starts() > 1 })
	if waited := time.Since(paused); waited < g.cfg.Timing.HostPause {
		t.Fatalf("started again after %v, want at least %v", waited, g.cfg.Timing.HostPause)
	}
	if e := emitted.of(agentproto.EventStartsPaused); len(e) != 1 || !strings.Contains(e[0].Message, "no more processes") || e[0].Key != "" {
		t.Fatalf("emitted %+v", e)
	}
}

func TestCountsOutlastTheAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartRetries, s.StartIntervalMS = 1000, 1 })
	pid := g.want("start", spec, 0, "").Status.PID
	for range 9 {
		sigkill(t, pid)
		g.crash()
		g.open()
		before := pid
		pid = g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != before }).PID
	}
	sigkill(t, pid)
	before := pid
	pid = g.becomes(spec, "it runs for the last time", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != before }).PID
	sigkill(t, pid)
	s := g.becomes(spec, "it is given up for flapping", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	if s.Restarts != 10 {
		t.Fatalf("status is %+v, want 10 restarts", s)
	}
}

// rebooted changes the stored records as if the host had booted since.
func (g *rig) rebooted() {
	g.t.Helper()
	g.ledger.mu.Lock()
	defer g.ledger.mu.Unlock()
	for key, text := range g.ledger.processes {
		var rec record
		if err := json.Unmarshal(text, &rec); err != nil {
			g.t.Fatal(err)
		}
		rec.Boot, rec.Main.BootID, rec.Failures = "boot before", "boot before", 100
		text, err := json.Marshal(rec)
		if err != nil {
			g.t.Fatal(err)
		}
		g.ledger.processes[key] = text
	}
}

func TestNothingStartsRightAfterABoot(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.BootGrace, c.Timing.BootUptime = 1500*time.Millisecond, time.Millisecond })
	specs := g.specs(2)
	for i := range specs {
		specs[i].StartIntervalMS = 1
	}
	pids := g.startAll(specs)
	g.crash()
	g.rebooted()
	sigkill(t, pids[0])
	booted := time.Now()
	g.open()
	s := g.becomes(specs[0], "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" })
	if waited := time.Since(booted); waited < g.cfg.Timing.BootGrace {
		t.Fatalf("started %v after the agent, want at least %v", waited, g.cfg.Timing.BootGrace)
	}
	if s.Failures != 0 || s.LastExit == nil || s.LastExit.Why != "reboot" {
		t.Fatalf("status is %+v, want no failures and an exit by reboot", s)
	}
	s = g.becomes(specs[1], "what runs already is adopted", func(s agentproto.Status) bool { return s.Phase == "running" })
	if s.PID != pids[1] || g.starts() != 2+1 {
		t.Fatalf("pid %d, want %d; %d starts, want 3", s.PID, pids[1], g.starts())
	}
}

func TestTermination(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.StartIntervalMS, s.OpTimeoutMS = daemon("-pid demo.pid -ignore-term"), 1, 2000
	})
	pid := g.want("start", spec, 0, "").Status.PID
	for range 2 {
		main, err := proc.Identify(pid)
		if err != nil {
			t.Fatal(err)
		}
		g.engine.requestTermination(spec.Key, main, func(procop.TerminationEnd) {})
		g.engine.requestTermination(spec.Key, main, func(procop.TerminationEnd) {}) // by then the process is gone
		s := g.becomes(spec, "another one runs", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
		if s.LastExit == nil || s.LastExit.Why != "limit" || proc.Alive(main) {
			t.Fatalf("status is %+v, want an exit by limit", s)
		}
		pid = s.PID
	}
	main, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	g.engine.requestTermination(spec.Key, main, func(procop.TerminationEnd) {})
	if e := g.emitted(&emitted, agentproto.EventGaveUp); e.Details["reason"] != "limit" || e.PID != pid {
		t.Fatalf("event is %+v", e)
	}
	g.becomes(spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" && !s.Running })
}
