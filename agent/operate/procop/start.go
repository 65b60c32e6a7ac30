package procop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// startup starts the process and verifies that it runs.
type startup struct {
	*work
	was proc.Identity // process to be replaced; zero = none
}

// start starts the process unless it runs.
func (w *work) start(ctx context.Context) Completion {
	if main := w.main(); !main.IsZero() {
		if bad := w.claim(); bad != nil {
			return *bad
		}
		w.evidence = append(w.evidence, w.probe.Evidence)
		if ids := w.instances(); ids != nil {
			return alreadyRunning(fmt.Sprintf("%s (%d/%d)", PIDList(ids), len(ids), w.spec.Instances))
		}
		return alreadyRunning(strconv.Itoa(main.PID))
	}
	if w.lookAlike() {
		c := alreadyRunning(strconv.Itoa(w.found().PID))
		c.Message = Join(c.Message, w.probe.Evidence)
		return c
	}
	return startup{work: w}.bringUp(ctx, ctx, procspec.StartLine(w.spec))
}

// bringUp runs a command that starts or replaces the process, and waits until the process
// runs.
//
// When yield ends, bringUp stops waiting for a command slot, and stops waiting for the
// process as soon as it is found. The wait for the command itself continues: a second
// command must not run at the same time.
func (s startup) bringUp(ctx, yield context.Context, line string) Completion {
	stale := s.probe.StalePidFile
	if bad := s.begin(); bad != nil {
		return *bad
	}
	moved := false
	s.starting = true
	defer func() { s.starting = false }()
	c, bad := s.spawn(yield, line, s.was, func() { moved = stale && s.movePidFile() })
	if bad != nil {
		if moved {
			s.restorePidFile()
		}
		return *bad
	}
	if moved {
		s.evidence = append(s.evidence, "stale pid file moved to "+s.aside())
	}
	defer c.release()
	s.leader = c.exec.Identity()
	switch s.await(ctx, c, procspec.OpTimeout(s.spec), func(ran time.Duration) bool { return s.foreground(ctx, ran) }) {
	case left:
		return interrupted()
	case accepted:
		return s.acceptForeground()
	case timedOut:
		return s.hung(ctx, c)
	case exited:
		c.freeSlot()
	}
	if result := c.exec.Result(); !result.OK() {
		s.search(ctx)
		failed := commandFailed("command failed", result.String(), s.runningText(), s.tail())
		if result.Unstartable() {
			failed.fault = supervise.BadSetup
		}
		return failed
	}
	return s.window(ctx, yield)
}

// begin records the time before the command is run.
func (w *work) begin() *Completion {
	ticks, err := proc.NowTicks()
	if err != nil {
		return new(Abnormal(err.Error()))
	}
	w.began, w.beganTicks = time.Now(), ticks
	return nil
}

// aside returns the path of a pid file that was moved aside: always the same, so that stale
// files do not accumulate.
func (s startup) aside() string { return s.spec.PidPath + ".stale" }

// movePidFile moves a stale pid file aside, since many daemons refuse to start if a pid file
// exists. It reports false if the file may belong to a live process.
func (s startup) movePidFile() bool {
	err := proc.MoveDeadPidFile(s.spec.PidPath, filepath.Base(s.aside()))
	if s.staleLeft = err != nil; s.staleLeft {
		s.warn("stale pid file %s not moved aside: %v", s.spec.PidPath, err)
	}
	return err == nil
}

// restorePidFile reverts movePidFile, unless a new pid file exists.
func (s startup) restorePidFile() {
	if _, err := os.Lstat(s.spec.PidPath); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := proc.RenameInDir(s.aside(), filepath.Base(s.spec.PidPath)); err != nil {
		s.warn("stale pid file not restored: %v", err)
	}
}

// foreground reports whether the command is the process itself, or the process is in the
// command's group, so that the command may continue to run. It reports false before the end
// of the start window.
func (s startup) foreground(ctx context.Context, ran time.Duration) bool {
	_, end := procspec.StartWindow(s.spec)
	if ran < max(end, s.host.Timing.ForegroundAfter) {
		return false
	}
	s.search(ctx)
	return s.inCommand()
}

// inCommand reports whether the process found belongs to the command's group and has run
// for Timing.Settle.
func (s startup) inCommand() bool {
	main := s.main()
	return !main.IsZero() && main != s.was && s.complete(s.was) && s.probe.Procs[0].PGID == s.leader.PID &&
		lasted(main, s.host.Timing.Settle)
}

func (s startup) acceptForeground() Completion {
	if bad := s.claim(); bad != nil {
		return *bad
	}
	field := "start_cmd"
	if s.op.Action == agentproto.ActionRestart && s.spec.RestartCmd != "" || s.spec.StartCmd == "" {
		field = "restart_cmd"
	}
	s.warn("%s runs in foreground", field)
	return Succeeded()
}

func (s startup) hung(ctx context.Context, c *command) Completion {
	text := c.timeoutText(procspec.OpTimeout(s.spec))
	s.search(ctx)
	if s.inCommand() {
		return s.acceptForeground()
	}
	s.endGroup(ctx, c)
	s.search(ctx)
	return commandFailed(text, s.runningText(), s.tail())
}

// runningText returns a message that the process runs although its command failed; "" if no
// process runs.
func (s startup) runningText() string {
	main := s.main()
	switch {
	case main.IsZero(), s.replacing: // replace says which process runs
		return ""
	case main == s.was:
		return fmt.Sprintf("process still runs, pid %d", main.PID)
	}
	return fmt.Sprintf("process is running, pid %d, not registered", main.PID)
}

// maxPidChanges bounds the pid changes within a start window: launchers and double forks
// legitimately replace the first pid.
const maxPidChanges = 3

// slowWindow is the age of a start window from which it is polled half as often.
const slowWindow = 30 * time.Second

// sightings summarizes what the searches of one start window found: the latest process, and
// how often the process changed or disappeared.
type sightings struct {
	id       proc.Identity // process of the latest search; zero = none
	appeared bool          // a process was found at least once
	changes  int
	lost     time.Time // when the process disappeared; zero = it runs or never appeared
}

func (s *sightings) add(id proc.Identity, now time.Time) {
	switch {
	case id == s.id:
		return
	case id.IsZero():
		s.lost = now
	case s.appeared:
		s.changes++
	}
	s.id = id
	if !id.IsZero() {
		s.appeared, s.lost = true, time.Time{}
	}
}

// window observes the process from the successful end of its command to the end of the
// start window.
//
// Once yield has ended, window returns as soon as the process is found. It does not return
// earlier: the operation that follows, such as a stop, would miss a process that is about
// to appear.
func (s startup) window(ctx, yield context.Context) Completion {
	begin, end := procspec.StartWindow(s.spec)
	settle := s.host.Timing.Settle
	opened := time.Now()
	var found sightings
	for {
		s.searchByPidFile(ctx)
		id := s.main()
		if id == s.was || !s.complete(s.was) {
			id = proc.Identity{}
		}
		now := time.Now()
		passed := now.Sub(opened)
		blocked := s.probe.Blocked && passed < end+s.host.Timing.BlockedWait
		if !blocked {
			found.add(id, now)
		}
		switch {
		case ctx.Err() != nil, yield.Err() != nil && !id.IsZero():
			return interrupted()
		case passed >= end && !id.IsZero() && lasted(id, min(settle, end-begin)):
			return s.claimed()
		case found.changes > maxPidChanges:
			return checkFailed(fmt.Sprintf("post-check: pid changed more than %d times", maxPidChanges), s.tail())
		case blocked: // the search observed nothing
		case passed >= begin && !found.lost.IsZero() && now.Sub(found.lost) >= settle, passed >= end+2*settle,
			passed >= end+settle && id.IsZero() && found.lost.IsZero():
			return s.absent(found.appeared)
		}
		if !pause(ctx, s.windowPoll(begin, passed)) {
			return interrupted()
		}
	}
}

// windowPoll returns the pause before the next search. Before begin, searches only observe
// and are rarer: without a pid file each one reads all processes of the host.
func (s startup) windowPoll(begin, passed time.Duration) time.Duration {
	poll := s.host.Timing.WindowPoll
	switch {
	case passed < begin:
		return max(poll/4, min(4*poll, begin-passed))
	case passed > slowWindow:
		return 2 * poll
	}
	return poll
}

// absent completes a start if the process does not run at the end of the start window. A
// process that may end by itself counts as started if a search found it, or if its command
// succeeded, which is known only of commands that this agent process ran.
func (s startup) absent(appeared bool) Completion {
	_, end := procspec.StartWindow(s.spec)
	main := s.main()
	switch {
	case s.probe.Verdict == proc.Uncertain:
		return Refused("state uncertain: " + s.probe.Evidence)
	case !s.complete(s.was) && !main.IsZero():
		ids := s.instances()
		return checkFailed(fmt.Sprintf("post-check: %d of %d instances run, pid %s", len(ids), s.spec.Instances, PIDList(ids)), s.tail())
	case !main.IsZero() && main == s.was:
		return checkFailed(fmt.Sprintf("process was not replaced, pid %d", main.PID), s.tail())
	case !main.IsZero():
		return checkFailed(fmt.Sprintf("post-check: pid %d is not stable", main.PID), s.tail())
	case !procspec.LivesOn(s.spec) && (appeared || s.command != nil && (s.staleLeft || !s.probe.StalePidFile)):
		return Succeeded()
	case appeared:
		return checkFailed("post-check: process ended within the start window", s.probe.Evidence, s.tail())
	}
	return checkFailed(fmt.Sprintf("post-check: no process within %s", end), s.probe.Evidence, s.tail())
}
