package procop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// shutdown ends the process and verifies that no process remains.
type shutdown struct{ *work }

func (s shutdown) stop(ctx context.Context) Completion {
	if s.found().IsZero() {
		return notRunning()
	}
	return s.bringDown(ctx)
}

// bringDown ends the running process by the stop command or, if the spec has none, by SIGTERM.
// If the spec has a stop grace, bringDown then kills the processes that still run, except for a
// look-alike.
func (s shutdown) bringDown(ctx context.Context) Completion {
	procs, grace := s.probe.Procs, procspec.StopGrace(s.spec)
	if s.lookAlike() {
		grace = 0
	}
	switch {
	case s.spec.StopCmd == "":
		if bad := s.sendSIGTERM(); bad != nil {
			return *bad
		}
		if grace > 0 {
			return s.awaitOrKill(ctx, procs, time.Now(), "")
		}
		c := s.awaitGone(ctx, procs, procspec.OpTimeout(s.spec), "")
		if c.Class == supervise.Failed {
			c.Message = Join(c.Message, "SIGTERM did not end it; kill does")
		}
		return c
	case grace > 0:
		return s.runEnding(ctx, s.spec.StopCmd, s.killAfter(), func(trouble string) Completion {
			return s.awaitOrKill(ctx, procs, s.command.began, trouble)
		})
	}
	return s.endBy(ctx, s.spec.StopCmd, procspec.Milliseconds(s.spec.StopCheckMS))
}

// sendSIGTERM sends SIGTERM to the process.
func (s shutdown) sendSIGTERM() *Completion {
	if bad := s.maySignal("control.stop (stop_cmd)"); bad != nil {
		return bad
	}
	for _, id := range s.all() {
		// A process that a signal has stopped handles SIGTERM only after SIGCONT.
		if err := errors.Join(proc.Signal(id, syscall.SIGTERM), proc.Continue(id)); err != nil {
			return new(commandFailed(err.Error()))
		}
	}
	return nil
}

// killAfter returns the time from the beginning of a stop after which its kill must not be
// delayed any longer: a hung stop command and a killed process need time to end within the
// operation's timeout.
func (s shutdown) killAfter() time.Duration {
	timeout := procspec.OpTimeout(s.spec)
	return timeout - min(s.host.Timing.KillGrace+s.host.Timing.KillWait, timeout/2)
}

// awaitOrKill waits for the end of the processes, at most for the stop grace and until
// killAfter from the beginning of the stop. Then it kills the processes that still run, with
// their process trees. trouble is the error of the stop command.
func (s shutdown) awaitOrKill(ctx context.Context, procs []proc.Process, began time.Time, trouble string) Completion {
	waited := procspec.StopGrace(s.spec)
	wait := min(waited, s.killAfter()-time.Since(began))
	if wait < waited {
		waited = s.killAfter()
	}
	c := s.awaitGone(ctx, procs, wait, trouble)
	if c.Class != supervise.Failed {
		return c
	}
	found := procs
	if !s.main().IsZero() { // a successor may have replaced the processes
		found = slices.Concat(procs, s.probe.Procs)
	}
	var left []proc.Process
	for _, p := range found {
		if proc.Alive(p.Identity) && !slices.Contains(identities(left), p.Identity) && !s.host.Claims.OtherHas(p.PID, s.spec.Key) {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return c
	}
	c = s.awaitGone(ctx, left, s.host.Timing.KillWait, Join(trouble, s.killTrees(ctx, left)))
	switch c.Class {
	case supervise.Done:
		s.warn("did not stop within %s s, killed", strconv.FormatFloat(waited.Seconds(), 'f', -1, 64))
	case supervise.Failed:
		c.Message = Join(c.Message, "SIGKILL did not end it")
	case supervise.Already, supervise.Refused, supervise.Interrupted:
	}
	return c
}

func (s shutdown) kill(ctx context.Context) Completion {
	switch {
	case s.found().IsZero():
		return s.killOrphans(ctx)
	case s.spec.KillCmd != "":
		return s.endBy(ctx, s.spec.KillCmd, s.host.Timing.KillWait)
	}
	if bad := s.maySignal("control.kill (kill_cmd)"); bad != nil {
		return *bad
	}
	procs := s.probe.Procs
	return s.awaitGone(ctx, procs, s.host.Timing.KillWait, s.killTrees(ctx, procs))
}

// killTrees kills the process trees of the processes, and returns why it may not; "" if it may.
func (s shutdown) killTrees(ctx context.Context, procs []proc.Process) string {
	var trouble []string
	for _, p := range procs {
		_, err := proc.KillTree(ctx, p.Identity, s.killScope())
		switch {
		case errors.Is(err, syscall.EPERM):
			trouble = append(trouble, err.Error())
		case err != nil: // the process may only need longer to end
			s.evidence = append(s.evidence, err.Error())
		}
	}
	return Join(trouble...)
}

// maySignal persists that the process is about to be signaled. It refuses to signal a
// look-alike; command names the spec field that the refusal recommends to set.
func (s shutdown) maySignal(command string) *Completion {
	if s.lookAlike() {
		return new(Refused(fmt.Sprintf("pid %d has the name and path of this process, but pid file %s does not name it: not signaled; "+
			"restore the pid file or set %s", s.found().PID, s.spec.PidPath, command)))
	}
	if bad := s.execute(s.main(), proc.Identity{}); bad != nil {
		return bad
	}
	s.host.Engine.Crash(CrashBeforeExec)
	s.acted = true
	return nil
}

// killOrphans kills the orphans of a process that has ended: processes with the mark of
// the key. It does nothing if no earlier process of the key is known.
func (s shutdown) killOrphans(ctx context.Context) Completion {
	orphans := s.orphans()
	if s.known.Last.IsZero() || orphans == "" {
		return notRunning()
	}
	if bad := s.execute(s.known.Last, proc.Identity{}); bad != nil {
		return *bad
	}
	if _, err := proc.KillTree(ctx, s.known.Last, s.killScope()); err != nil {
		return checkFailed(err.Error())
	}
	s.warn("process was not running; killed its orphans: %s", orphans)
	return Succeeded()
}

// endBy runs a command that should end the process, and waits up to wait for the end.
func (s shutdown) endBy(ctx context.Context, line string, wait time.Duration) Completion {
	procs := s.probe.Procs
	return s.runEnding(ctx, line, procspec.OpTimeout(s.spec), func(trouble string) Completion {
		return s.awaitGone(ctx, procs, wait, trouble)
	})
}

// runEnding runs a command that should end the process, at most for limit, and then await with
// the error of the command.
func (s shutdown) runEnding(ctx context.Context, line string, limit time.Duration, await func(trouble string) Completion) Completion {
	s.ending = true
	trouble, release, bad := s.runCommand(ctx, line, limit, s.main())
	s.ending = false
	if bad != nil {
		return *bad
	}
	defer release()
	return await(trouble)
}

// awaitGone waits until the processes and any successor are gone. trouble is the error of
// the command that should have ended them; once they are gone, it is only a warning.
func (s shutdown) awaitGone(ctx context.Context, procs []proc.Process, wait time.Duration, trouble string) Completion {
	deadline, ids := time.Now().Add(wait), identities(procs)
	for polls := s.polls(); ; {
		// Read the time before the search, so that the last search is after the deadline.
		late := time.Now().After(deadline)
		if !anyAlive(ids) {
			if s.search(ctx); s.probe.Verdict != proc.Uncertain && !s.succeeded(procs) {
				return s.gone(trouble)
			}
		}
		if late {
			return s.remaining(ctx, ids, wait, trouble)
		}
		if !polls.pause(ctx) {
			return interrupted()
		}
	}
}

// polls yields the pauses between queries of processes that should end: short at first,
// since most end at once, then doubled up to most.
type polls struct{ next, most time.Duration }

const firstStopPoll = 5 * time.Millisecond

func (s shutdown) polls() *polls { return &polls{firstStopPoll, s.host.Timing.StopPoll} }

// pause waits for the next pause; it reports false if ctx ended first.
func (p *polls) pause(ctx context.Context) bool {
	d := min(p.next, p.most)
	p.next = 2 * d
	return pause(ctx, d)
}

// awaitEnd waits until all processes are gone or wait has passed; it reports false if ctx
// ended first.
func (p *polls) awaitEnd(ctx context.Context, ids []proc.Identity, wait time.Duration) bool {
	for deadline := time.Now().Add(wait); anyAlive(ids) && time.Now().Before(deadline); {
		if !p.pause(ctx) {
			return false
		}
	}
	return true
}

// succeeded reports whether the search found a successor of the processes that are gone.
// With a pid file, a successor is the process that the file names. Without one, it carries
// the mark of the key, or it is younger than the first of them and in the same session.
func (s shutdown) succeeded(gone []proc.Process) bool {
	switch {
	case s.main().IsZero():
		return false
	case !s.probe.Searched || s.spec.PidPath != "":
		return !s.probe.Searched
	case s.probe.Marked, len(gone) == 0:
		return true
	}
	return slices.ContainsFunc(s.probe.Procs, func(p proc.Process) bool {
		return p.Start >= gone[0].Start && p.Session == gone[0].Session
	})
}

// gone completes work whose process is gone. A look-alike that still runs is only added to
// the evidence.
func (s shutdown) gone(trouble string) Completion {
	if id := s.found(); !id.IsZero() {
		s.probe = proc.Probe{
			Verdict:  proc.Stopped,
			Evidence: fmt.Sprintf("pid %d has the name and path of the process that has ended", id.PID),
		}
	}
	if trouble != "" {
		s.warn("process is gone, but: %s", trouble)
	}
	if orphans := s.orphans(); orphans != "" {
		s.warn("orphans of the process remain: %s", orphans)
	}
	return Succeeded()
}

// remaining completes work whose process did not end within wait.
func (s shutdown) remaining(ctx context.Context, ids []proc.Identity, wait time.Duration, trouble string) Completion {
	s.search(ctx)
	still := "still running pid " + PIDList(ids)
	if main := s.main(); !main.IsZero() && !anyAlive(ids) {
		still = fmt.Sprintf("still running pid %d, which replaced pid %s", main.PID, PIDList(ids))
	}
	if trouble != "" {
		return commandFailed(trouble, still)
	}
	return checkFailed(fmt.Sprintf("%s after %s", still, wait), s.tail())
}
