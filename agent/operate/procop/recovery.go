package procop

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// recovery completes work that an earlier agent process began.
type recovery struct{ *work }

// operation completes an interrupted operation according to the present state of the
// process. Its command is never run again, since it may have run already.
func (r recovery) operation(ctx context.Context, exec journal.Exec) Completion {
	var was before
	if err := json.Unmarshal(exec.Before, &was); err != nil {
		r.warn("process before the operation unknown: %v", err)
	}
	if procspec.StartsProcess(r.op.Action) {
		r.began, r.beganTicks = exec.At, was.Ticks
	}
	if !r.outlast(ctx, exec) || r.unrecorded(exec) && !r.outlastUnrecorded(ctx, was.Main) {
		return interrupted()
	}
	r.warn("recovered after the agent restarted during the operation")
	switch r.op.Action {
	case agentproto.ActionStart, agentproto.ActionRestart:
		return r.start(ctx, was)
	case agentproto.ActionStop, agentproto.ActionKill:
		return r.end(ctx, exec, was)
	}
	r.search(ctx)
	return commandFailed("interrupted by agent restart, outcome unknown")
}

func (r recovery) start(ctx context.Context, was before) Completion {
	if procspec.StopGrace(r.spec) > 0 { // a restart may have been killing the process
		r.search(ctx)
		r.continueTree()
	}
	start := startup{work: r.work, was: was.Main}
	if r.spec.RestartInPlace {
		start.was = proc.Identity{}
	}
	c := start.window(ctx, ctx)
	switch {
	case c.Class != supervise.Failed || r.probe.Verdict != proc.Stopped:
		return c
	case procspec.LivesOn(r.spec):
		return commandFailed("agent restarted during operation; process not running", r.probe.Evidence)
	}
	return commandFailed("agent restarted during operation; process may have run and ended", r.probe.Evidence)
}

// continueTree continues the process tree, which an interrupted kill may have stopped.
func (r recovery) continueTree() {
	main := r.main()
	if main.IsZero() {
		return
	}
	if err := proc.ContinueTree(main, r.killScope()); err != nil {
		r.warn("%v", err)
	}
}

// end completes a stop or kill. A stop kills only the process that it should have ended, not one
// that was started since. It kills none if the stop command may not have run; SIGTERM is sent
// again.
func (r recovery) end(ctx context.Context, exec journal.Exec, was before) Completion {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	kills := r.op.Action == agentproto.ActionStop && procspec.StopGrace(r.spec) > 0
	if kills || r.op.Action == agentproto.ActionKill {
		r.continueTree()
	}
	if main := r.main(); kills && !main.IsZero() && main == was.Main {
		switch {
		case r.spec.StopCmd == "":
			return shutdown(r).bringDown(ctx)
		case exec.PID != 0:
			return shutdown(r).awaitOrKill(ctx, r.probe.Procs, exec.At, "")
		}
	}
	c := shutdown(r).awaitGone(ctx, r.probe.Procs, procspec.Milliseconds(r.spec.StopCheckMS), "")
	if main := r.main(); c.Class == supervise.Failed && !main.IsZero() {
		return checkFailed(fmt.Sprintf("interrupted by agent restart; still running pid %d", main.PID))
	}
	return c
}

// outlast waits until the command of the earlier agent process has ended, and kills the
// command when its timeout has passed. It reports false if ctx ended first.
func (r recovery) outlast(ctx context.Context, exec journal.Exec) bool {
	r.leader = proc.Identity{BootID: exec.BootID, PID: exec.PID, Start: exec.Start}
	if exec.PID != 0 {
		defer r.host.Groups.Add(exec.PID)()
	}
	deadline := exec.At.Add(procspec.OpTimeout(r.spec))
	for proc.Alive(r.leader) {
		if r.search(ctx); procspec.StartsProcess(r.op.Action) && (startup{work: r.work}).inCommand() {
			break
		}
		if time.Now().After(deadline) {
			if err := proc.KillGroup(ctx, r.leader, r.host.Timing.KillGrace, identities(r.probe.Procs)...); err != nil {
				r.warn("hung command: %v", err)
			}
			break
		}
		if !pause(ctx, r.host.Timing.WindowPoll) {
			return false
		}
	}
	return ctx.Err() == nil
}

// unrecorded reports whether a start command with an unrecorded pid may still run. If its
// start time was not recorded either, no command was about to be run.
func (r recovery) unrecorded(exec journal.Exec) bool {
	return exec.PID == 0 && exec.BootID == r.host.BootID && r.beganTicks != 0
}

// outlastUnrecorded waits for the end of a start command whose pid was not recorded. A
// process that leads a session, carries the mark of the key and is not the process may be
// that command. Since this is no proof, it is not killed after the timeout. was is the
// process that the command replaces; zero = none.
func (r recovery) outlastUnrecorded(ctx context.Context, was proc.Identity) bool {
	deadline := r.began.Add(procspec.OpTimeout(r.spec))
	for time.Now().Before(deadline) {
		if r.search(ctx); !r.main().IsZero() && r.main() != was || !r.commandRuns() {
			break
		}
		if !pause(ctx, r.host.Timing.WindowPoll) {
			return false
		}
	}
	return ctx.Err() == nil
}

func (r recovery) commandRuns() bool {
	orphans, err := r.host.Finder.Orphans(r.killScope())
	return err == nil && slices.ContainsFunc(orphans, func(p proc.Process) bool {
		return p.PID == p.Session && p.Start >= r.beganTicks
	})
}

// AutoStart starts a supervised process that does not run.
type AutoStart struct {
	*work

	left    journal.Exec // start command that an earlier automatic start left running; zero = none
	awaited bool         // the command of left has ended
	resumed bool         // the command of left has started the process
}

// AutoStart returns the work of an automatic start. left is the start command that an
// earlier automatic start, of this or an earlier agent process, left running; zero = none.
// record persists the start command that is about to run or runs, and returns the error of
// the engine's context if that ended first.
func (h *Host) AutoStart(spec *agentproto.Spec, known Knowledge, left journal.Exec, record func(journal.Exec) error) *AutoStart {
	a := &AutoStart{work: h.work(journal.Op{Action: agentproto.ActionStart, Spec: *spec}, known), left: left}
	a.record = record
	return a
}

// AutoStartReport is the report of an automatic start.
type AutoStartReport struct {
	Report
	Spawned bool // a start command was run
	Ran     bool // a start command ran: a new one or the one left running
	Over    bool // no start command runs any longer
}

// Run starts the process unless it runs. When yield ends, Run returns as soon as no start
// command runs.
func (a *AutoStart) Run(ctx, yield context.Context) AutoStartReport {
	c := a.ensure(ctx, yield)
	spawned := a.command != nil
	return AutoStartReport{
		Report: a.report(c), Spawned: spawned, Ran: spawned || a.resumed,
		Over: c.Class != supervise.Interrupted || a.over(),
	}
}

// over reports whether an interrupted automatic start has left no start command running and
// no process that is about to appear.
func (a *AutoStart) over() bool {
	switch {
	case !a.awaited:
		return false
	case a.command == nil:
		return true
	}
	select {
	case <-a.command.exec.Done():
		return !a.main().IsZero()
	default:
		return false
	}
}

func (a *AutoStart) ensure(ctx, yield context.Context) Completion {
	if c, done := a.awaitLeft(ctx, yield); done {
		return c
	}
	if bad := a.ready(yield); bad != nil {
		return *bad
	}
	switch {
	case a.lookAlike():
		c := Succeeded()
		c.Message = "not started, since a look-alike runs: " + a.probe.Evidence
		return c
	case a.main().IsZero():
		return startup{work: a.work}.bringUp(ctx, yield, procspec.StartLine(a.spec))
	}
	return a.claimed()
}

// awaitLeft waits until the command of left has ended and its process has had the time to
// appear: a second command at the same time could start a second process. It reports false
// if the process has still to be started.
func (a *AutoStart) awaitLeft(ctx, yield context.Context) (Completion, bool) {
	if a.left.At.IsZero() || a.left.BootID != a.host.BootID {
		a.awaited = true
		return Completion{}, false
	}
	var was before
	if err := json.Unmarshal(a.left.Before, &was); err != nil {
		a.warn("begin of the start command unknown: %v", err)
	}
	a.began, a.beganTicks = a.left.At, was.Ticks
	r := recovery{a.work}
	if !r.outlast(ctx, a.left) || a.left.PID == 0 && !r.outlastUnrecorded(ctx, proc.Identity{}) {
		return interrupted(), true
	}
	c := startup{work: a.work}.window(ctx, yield)
	a.awaited = ctx.Err() == nil
	a.resumed = c.Class == supervise.Done
	return c, c.Class != supervise.Failed
}

// AwaitLeft waits, before an operation, until the command of left has ended or its process
// runs. It reports false if ctx ended first.
func (a *AutoStart) AwaitLeft(ctx context.Context) bool {
	yield, cancel := context.WithCancel(ctx)
	cancel() // return as soon as the process is found
	a.awaitLeft(ctx, yield)
	return ctx.Err() == nil
}
