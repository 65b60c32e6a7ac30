package operate

import (
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// quietRig returns a rig that does not sweep by itself and has one quiet process.
func quietRig(t *testing.T, change ...func(*Config)) (*rig, agentproto.Spec, *actor) {
	t.Helper()
	g := newRig(t, append(change, func(c *Config) { c.Timing.Sweep = time.Hour })...)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	g.want("start", spec, 0, "")
	g.engine.mu.Lock()
	a := g.engine.actors[spec.Key]
	g.engine.mu.Unlock()
	g.eventually("it is quiet", func() bool { return a.snapshot.Load().quiet })
	if a.snapshot.Load().pidFileWritten.IsZero() { // the start did not use the pid file
		g.eventually("its pid file was read", func() bool {
			a.mailbox.remind(supervise.Swept{}) // repeated: a busy machine may not read the file in time
			return !a.snapshot.Load().pidFileWritten.IsZero()
		})
	}
	return g, spec, a
}

func send(t *testing.T, id proc.Identity, signal syscall.Signal) {
	t.Helper()
	if err := proc.Signal(id, signal); err != nil {
		t.Fatal(err)
	}
}

func TestQuietProcessThatASignalStoppedIsNoticed(t *testing.T) {
	t.Parallel()
	g, _, a := quietRig(t)
	main := a.snapshot.Load().known.Main
	if left := (sweeper{g.engine}).remindTurn(a.turn); len(left) != 1 {
		t.Fatalf("%d processes are quiet, want 1", len(left))
	}
	g.engine.gauges.prune(func(proc.Identity) bool { return true }) // the start has measured the process
	send(t, main, syscall.SIGSTOP)
	for turn := range sweepTurns {
		if turn != a.turn {
			sweeper{g.engine}.check([]*actor{a}, turn)
		}
	}
	if !a.snapshot.Load().quiet {
		t.Fatal("it was queried in another turn than its own")
	}
	g.eventually("its actor knows", func() bool {
		sweeper{g.engine}.check([]*actor{a}, a.turn)
		return !a.snapshot.Load().quiet
	})
	send(t, main, syscall.SIGCONT)
	g.eventually("it is quiet again", func() bool {
		sweeper{g.engine}.remindTurn(a.turn % sweepParts)
		return a.snapshot.Load().quiet
	})
}

// The sweep does not query processes that a report has just measured.
func TestReportNoticesThatASignalStoppedAQuietProcess(t *testing.T) {
	t.Parallel()
	g, _, a := quietRig(t)
	main := a.snapshot.Load().known.Main
	g.engine.Processes()
	send(t, main, syscall.SIGSTOP)
	g.eventually("it is stopped", func() bool { _, suspended := proc.RunState(main); return suspended })
	if (sweeper{g.engine}).changed(main) {
		t.Fatal("it was queried again although a report has just measured it")
	}
	g.eventually("its actor knows", func() bool {
		g.engine.Processes()
		return !a.snapshot.Load().quiet
	})
}

func TestProcessWithAHealthCommandIsInEverySweep(t *testing.T) {
	t.Parallel()
	g, spec, a := quietRig(t)
	spec.HealthCmd = "true"
	g.want("supervise", spec, 0, "")
	if a.snapshot.Load().quiet {
		t.Fatal("it is quiet, and its health command would not run in time")
	}
}

func TestPidFileOfAQuietProcessIsRead(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g, _, a := quietRig(t, func(c *Config) { c.Emit, c.Timing.ConflictWait = emitted.add, time.Nanosecond })
	sweeper{g.engine}.checkPidFiles([]*actor{a})
	if !a.snapshot.Load().quiet {
		t.Fatal("it is not quiet although nothing changed")
	}
	other := startByHand(t, g)
	g.eventually("the agent knows whom the pid file names", func() bool {
		sweeper{g.engine}.checkPidFiles([]*actor{a})
		return !a.snapshot.Load().quiet
	})
	sweeper{g.engine}.remindTurn((a.turn + sweepParts) % sweepTurns) // the process is not quiet, so each sweep reminds its actor
	if e := g.emitted(&emitted, agentproto.EventTwoMasters); e.Details["pid_other"] != other {
		t.Fatalf("event is %+v, want pid %d", e, other)
	}
}

// The search for a successor, which reads every process of the host, is blocked here.
func TestDeathIsKnownBeforeTheSearchForASuccessorEnds(t *testing.T) {
	t.Parallel()
	g, spec, _ := quietRig(t)
	for range cap(g.engine.host.Searches) {
		g.engine.host.Searches.Acquire(t.Context())
	}
	pid := g.engine.snapshotOf(spec.Key).known.Main.PID
	before := time.Now()
	sigkill(t, pid)
	g.eventually("its exit is known", func() bool { return g.engine.snapshotOf(spec.Key).lastExit != nil })
	s := g.engine.snapshotOf(spec.Key)
	if s.lastExit.At.Before(before) || s.known.Main.PID != pid {
		t.Fatalf("exit is %+v, killed at %v; the process is %v, want %d until the search has ended", s.lastExit, before, s.known.Main, pid)
	}
	for range cap(g.engine.host.Searches) {
		g.engine.host.Searches.Release()
	}
	g.eventually("nothing was found", func() bool { return g.engine.snapshotOf(spec.Key).phase == "backoff" })
}

func TestPidFileThatAStartHasReadIsNotReadAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.Sweep = time.Hour })
	spec := g.spec()
	g.want("start", spec, 0, "")
	g.eventually("it is quiet", func() bool { return g.engine.snapshotOf(spec.Key).quiet })
	written, err := g.engine.host.Finder.FilesWritten(t.Context(), []string{spec.PidPath})
	if s := g.engine.snapshotOf(spec.Key); err != nil || !written[0].Equal(s.pidFileWritten) {
		t.Fatalf("the pid file of %v (%v) counts as read at %v", written, err, s.pidFileWritten)
	}
}
