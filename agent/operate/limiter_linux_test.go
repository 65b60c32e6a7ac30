package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// limitRig returns a rig with short intervals of limit checks, and its event log.
func limitRig(t *testing.T) (*rig, *eventLog) {
	t.Helper()
	var emitted eventLog
	return newRig(t, func(c *Config) {
		c.Emit = emitted.add
		c.Timing.UsageSample, c.Timing.UsageWindow, c.Timing.UsageArm = 50*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
		c.Timing.TerminateSpacing = 50 * time.Millisecond
	}), &emitted
}

// megabytes converts MB to percent of the memory that limits refer to.
func megabytes(t *testing.T, mb int) float64 {
	t.Helper()
	capacity, err := proc.ReadCapacity()
	if err != nil {
		t.Fatal(err)
	}
	return capacity.PercentOf(int64(mb) << 20)
}

// demoUsing returns the spec of a supervised demo whose restart is delayed by a minute.
func (g *rig) demoUsing(args string, change ...func(*agentproto.Spec)) agentproto.Spec {
	return g.spec(append([]func(*agentproto.Spec){func(s *agentproto.Spec) {
		s.StartCmd, s.StartIntervalMS = started(args), 60_000
	}}, change...)...)
}

// exceeded waits for the event of a termination and returns it.
func (g *rig) exceeded(emitted *eventLog) agentproto.Event {
	g.t.Helper()
	g.eventually("a limit is exceeded", func() bool { return len(emitted.of(agentproto.EventLimitExceeded)) > 0 })
	return emitted.of(agentproto.EventLimitExceeded)[0]
}

// measured waits for the given number of measurements.
func (g *rig) measured(times int) {
	g.t.Helper()
	last := g.engine.limiter.shown.Load()
	g.eventually(fmt.Sprintf("%d measurements", times), func() bool {
		if now := g.engine.limiter.shown.Load(); now != last {
			last = now
			times--
		}
		return times <= 0
	})
}

func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F71_busy_thread", func(t *testing.T) {
		t.Parallel()
		g, emitted := limitRig(t)
		spec := g.demoUsing("-busy", func(s *agentproto.Spec) { s.CPULimit = 0.2 })
		pid := g.want("start", spec, 0, "").Status.PID
		event := g.exceeded(emitted)
		if event.PID != pid || event.Details["metric"] != "cpu" || event.Details["value"].(float64) <= 0.2 || event.Details["ended"] != true {
			t.Fatalf("event is %+v", event)
		}
		s := g.becomes(spec, "it is down", func(s agentproto.Status) bool { return !s.Running && s.Phase == "backoff" })
		if s.Failures != 1 || s.LastExit == nil || s.LastExit.Why != "limit" {
			t.Fatalf("status is %+v, last exit %+v", s, s.LastExit)
		}
	})
	t.Run("F73_leak", func(t *testing.T) {
		t.Parallel()
		g, emitted := limitRig(t)
		spec := g.demoUsing("-hold 200", func(s *agentproto.Spec) {
			s.MemoryLimit, s.StartIntervalMS = megabytes(t, 150), 50
		})
		g.want("start", spec, 0, "")
		g.becomes(spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
		g.eventually("three terminations are emitted", func() bool { return len(emitted.of(agentproto.EventLimitExceeded)) == 3 })
		if g.starts() != 3 {
			t.Fatalf("%d starts, want 3", g.starts())
		}
		if gaveUp := emitted.of(agentproto.EventGaveUp); len(gaveUp) != 1 || gaveUp[0].Details["reason"] != "limit" {
			t.Fatalf("events are %+v", gaveUp)
		}
	})
	t.Run("F74_prefork", func(t *testing.T) {
		t.Parallel()
		testPrefork(t)
	})
	t.Run("F75_stop_command_hangs", func(t *testing.T) {
		t.Parallel()
		g, emitted := limitRig(t)
		spec := g.demoUsing("", func(s *agentproto.Spec) {
			s.StartCmd = daemon("-pid demo.pid -hold 200 -ignore-term -workers 2") // does not wait: the timeout is short
			s.MemoryLimit, s.OpTimeoutMS, s.StopCheckMS = megabytes(t, 150), 3000, 100
			s.StopCmd, s.KillCmd = "echo >>stops; exec sleep 60", "echo >>kills"
		})
		g.want("start", spec, 0, "")
		event := g.exceeded(emitted)
		if event.Details["how"] != "SIGKILL" || !strings.Contains(event.Message, "stop command did not end it") ||
			!strings.Contains(event.Message, "kill command did not end it") || g.lines("stops") != 1 || g.lines("kills") != 1 {
			t.Fatalf("%d stops, %d kills, event is %+v", g.lines("stops"), g.lines("kills"), event)
		}
		g.eventually("all that belongs to it is gone", func() bool { return len(g.running()) == 0 })
		g.becomes(spec, "it is down", func(s agentproto.Status) bool { return !s.Running && s.Phase == "backoff" })
	})
	t.Run("F76_pool", func(t *testing.T) {
		t.Parallel()
		testPool(t)
	})
	t.Run("F77_operation", func(t *testing.T) {
		t.Parallel()
		g, emitted := limitRig(t)
		spec := g.demoUsing("-hold 200", func(s *agentproto.Spec) {
			s.MemoryLimit, s.ReloadCmd, s.OpTimeoutMS = megabytes(t, 150), "while [ ! -e go ]; do sleep 0.05; done", 60_000
			s.StartCheckBeginMS, s.StartCheckEndMS = 0, 0
		})
		spec.StartCmd = strings.Replace(spec.StartCmd, "setsid", "while [ ! -e reloading ]; do sleep 0.05; done; setsid", 1)
		start, reload := g.submit("start", spec), g.submit("reload", spec)
		g.write("reloading", "")
		pid := g.check(g.result(start), 0, "").Status.PID
		g.becomes(spec, "it is over its limit", func(s agentproto.Status) bool {
			return s.TreeMemoryBytes > 200<<20 && strings.Contains(s.Evidence, "busy: reload")
		})
		g.measured(10)
		if s := g.status(spec); s.PID != pid || len(emitted.of(agentproto.EventLimitExceeded)) > 0 {
			t.Fatalf("status is %+v while the operation runs", s)
		}
		g.write("go", "")
		g.check(g.result(reload), 0, "")
		g.exceeded(emitted)
	})
	t.Run("F77_freeze", func(t *testing.T) {
		t.Parallel()
		g, emitted := limitRig(t)
		g.engine.Apply(agentproto.Settings{Freezes: []agentproto.Freeze{{Until: time.Now().Add(time.Hour)}}})
		spec := g.demoUsing("-hold 200", func(s *agentproto.Spec) { s.MemoryLimit = megabytes(t, 150) })
		pid := g.want("start", spec, 0, "").Status.PID
		g.becomes(spec, "it is over its limit", func(s agentproto.Status) bool { return s.TreeMemoryBytes > 200<<20 })
		g.measured(10)
		if s := g.status(spec); s.PID != pid || len(emitted.of(agentproto.EventLimitExceeded)) > 0 {
			t.Fatalf("status is %+v while the host is frozen", s)
		}
		g.engine.Apply(agentproto.Settings{})
		g.exceeded(emitted)
	})
	t.Run("F78_out_of_memory", func(t *testing.T) {
		t.Parallel()
		testOutOfMemory(t)
	})
	t.Run("F94_slow_disk", func(t *testing.T) { t.Run("supervision goes on", testSlowDiskSlowsOperationsOnly) })
	t.Run("F96_fault_of_the_agent", func(t *testing.T) { t.Run("left alone", testProcessThatTheAgentFailsAtIsLeftAlone) })
}

func TestReleasedProcessMayUseWhatItLikes(t *testing.T) {
	t.Parallel()
	g, emitted := limitRig(t)
	g.engine.Apply(agentproto.Settings{Freezes: []agentproto.Freeze{{Until: time.Now().Add(time.Hour)}}})
	spec := g.demoUsing("-hold 200", func(s *agentproto.Spec) { s.MemoryLimit = megabytes(t, 150) })
	pid := g.want("start", spec, 0, "").Status.PID
	g.measured(3)
	g.want("release", spec, 0, "")
	g.engine.Apply(agentproto.Settings{})
	g.eventually("it is not measured any more", func() bool { return g.engine.limiter.shown.Load() == nil })
	if s := g.status(spec); s.PID != pid || len(emitted.of(agentproto.EventLimitExceeded)) > 0 {
		t.Fatalf("status is %+v", s)
	}
}

func TestProcessThatRunsOnceHasLimits(t *testing.T) {
	t.Parallel()
	g, emitted := limitRig(t)
	spec := g.demoUsing("-hold 200", func(s *agentproto.Spec) { s.Type, s.MemoryLimit = "once", megabytes(t, 150) })
	g.want("start", spec, 0, "")
	g.exceeded(emitted)
	if s := g.becomes(spec, "it has ended", func(s agentproto.Status) bool { return !s.Running && s.Phase == "stopped" }); s.Supervised {
		t.Fatalf("status is %+v", s)
	}
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestCrowdedHostIsReadLessOften(t *testing.T) {
	t.Parallel()
	for processes, want := range map[int]time.Duration{0: 5 * time.Second, 9_999: 5 * time.Second, 10_000: 15 * time.Second, 30_000: 15 * time.Second} {
		if got := pace(5*time.Second, processes); got != want {
			t.Errorf("with %d processes every %s, want %s", processes, got, want)
		}
	}
}

// testPrefork measures a small main process whose workers use the memory: first private, then
// shared memory.
func testPrefork(t *testing.T) {
	t.Helper()
	g, emitted := limitRig(t)
	spec := g.demoUsing("-workers 3 -each 100", func(s *agentproto.Spec) { s.MemoryLimit = megabytes(t, 300) })
	g.want("start", spec, 0, "")
	event := g.exceeded(emitted)
	if event.Details["ended"] != true || event.Details["value"].(float64) <= megabytes(t, 300) {
		t.Fatalf("event is %+v", event)
	}
	g.eventually("its workers are gone", func() bool { return len(g.running()) == 0 })

	g, emitted = limitRig(t)
	spec = g.demoUsing("-workers 3 -shared 150", func(s *agentproto.Spec) { s.MemoryLimit = megabytes(t, 500) })
	pid := g.want("start", spec, 0, "").Status.PID
	g.becomes(spec, "the sum is over the limit", func(s agentproto.Status) bool { return s.TreeMemoryBytes > 500<<20 })
	g.measured(10)
	if s := g.status(spec); s.PID != pid || len(emitted.of(agentproto.EventLimitExceeded)) > 0 {
		t.Fatalf("memory that is shared counts several times: %+v", emitted.of(agentproto.EventLimitExceeded))
	}
}

func testPool(t *testing.T) {
	t.Helper()
	g, emitted := limitRig(t)
	member := func(name string, hold int) agentproto.Spec {
		dir := filepath.Join(g.dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		install(t, dir, demoName)
		return g.demoUsing(fmt.Sprintf("-hold %d", hold), func(s *agentproto.Spec) {
			s.Key, s.SetupPath, s.PidPath, s.Namespace = name, dir, filepath.Join(dir, "demo.pid"), "shop"
		})
	}
	small, large := member("small", 100), member("large", 200)
	stranger := member("stranger", 250)
	stranger.Namespace = "elsewhere"
	var pids []int
	for i, spec := range []agentproto.Spec{small, large, stranger} {
		g.want("start", spec, 0, "")
		s := g.becomes(spec, "it has its memory", func(s agentproto.Status) bool { return s.MemoryBytes > []int64{100, 200, 250}[i]<<20 })
		pids = append(pids, s.PID)
	}
	g.engine.Apply(agentproto.Settings{Groups: []agentproto.Group{{Namespace: "shop", ID: "g1", MemoryLimit: megabytes(t, 270)}}})
	event := g.exceeded(emitted)
	if event.Key != "large" || event.PID != pids[1] || event.Details["pool"] != "g1" || event.Details["members_total"] != 2 {
		t.Fatalf("event is %+v", event)
	}
	g.becomes(large, "the larger one is down", func(s agentproto.Status) bool { return !s.Running })
	g.measured(10)
	if s := g.status(small); s.PID != pids[0] || s.TreeMemoryBytes == 0 {
		t.Fatalf("status of the smaller one is %+v", s)
	}
	if s := g.status(stranger); s.PID != pids[2] || s.TreeMemoryBytes != 0 {
		t.Fatalf("status of one of another namespace is %+v", s)
	}
	g.engine.Apply(agentproto.Settings{})
	g.eventually("nothing is measured without limits", func() bool { return g.engine.limiter.shown.Load() == nil })
}

func testOutOfMemory(t *testing.T) {
	t.Helper()
	group := memoryGroup(t, 200<<20)
	g, _ := limitRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo $$ >" + group + "/cgroup.procs && " + started("-greedy go")
		s.StartIntervalMS = 60_000
	})
	g.want("start", spec, 0, "")
	g.write("go", "")
	s := g.becomes(spec, "the kernel ends it", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	if s.LastExit == nil || s.LastExit.Why != "out of memory" || s.LastExit.Signal != "SIGKILL" {
		t.Fatalf("last exit is %+v", s.LastExit)
	}
	g.want("stop", spec, 829, "")
}

// memoryGroup creates a control group with a memory limit, which is removed after the test.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	name := fmt.Sprintf("procfleet-operate-%d", os.Getpid())
	for dir, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		group := filepath.Join(dir, name)
		if os.Mkdir(group, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for deadline := time.Now().Add(patience); os.Remove(group) != nil && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
		})
		if os.WriteFile(filepath.Join(group, file), fmt.Append(nil, limit), 0o600) == nil {
			_ = os.WriteFile(filepath.Join(group, "memory.swap.max"), []byte("0"), 0o600)
			return group
		}
	}
	testenv.Missing(t, "cgroups", "no control group with a memory limit can be made here")
	return ""
}
