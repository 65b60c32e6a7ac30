package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Recover takes over what an earlier agent process left. Processes are looked
// for and adopted without running anything; operations that had begun are
// judged by what is there now and never run again; those that had not begun
// wait for [Engine.Resume]. Call it once, before Submit.
func (e *Engine) Recover(left journal.Recovered) {
	if err := e.outputs.adopt(); err != nil {
		e.cfg.Log.WithError(err).Warn("old output files not recovered")
	}
	if left.Damage != nil {
		e.damage = left.Damage.ID
	}
	var adopted []*actor
	for key, text := range left.Processes {
		a, down := e.adopt(key, text)
		if a != nil {
			adopted = append(adopted, a)
		}
		e.countDown(key, down)
	}
	// Nothing begins before every operation is with its process: what was begun
	// may still be under way, and an automatic start must not run beside it.
	defer func() {
		for _, a := range adopted {
			a.mailbox.open()
		}
	}()
	var waiting []journal.Op
	for _, open := range left.Open {
		if open.Executing {
			e.submit(order{op: open.Op, interrupted: &open.Exec})
		} else {
			waiting = append(waiting, open.Op)
		}
	}
	if len(waiting) > 0 {
		e.cfg.Log.WithField("operations", len(waiting)).Info("recovered operations waiting for server time")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recovered = waiting
}

// Resume carries out what Recover found and had not begun, unless its time has
// passed by Config.InTime. Call it when that knows the server's time: this
// host's clock may be wrong by days after a boot, and an operation of
// yesterday would be executed today.
func (e *Engine) Resume() {
	e.mu.Lock()
	waiting := e.recovered
	e.recovered = nil
	e.mu.Unlock()
	for _, op := range waiting {
		switch received := receivedAt(&op); {
		case e.cfg.InTime(received.Add(-clockError)):
			// How long the agent was down is not known: the task may have ended.
			e.turnAway(e.life, op, refused("agent restarted, not executed: the servers' clock was set back"))
		case e.late(&op) || e.cfg.InTime(received.Add(budget(&op.Spec))):
			e.submit(order{op: op}) // which refuses what is late
		default:
			e.turnAway(e.life, op, refused("agent restarted, not executed: too old"))
		}
	}
}

// clockError is by how much two estimates of the servers' time may differ.
const clockError = 5 * time.Second

// receivedAt is when an operation was accepted, by the server's clock. Records
// of older agents have the host's time only.
func receivedAt(op *journal.Op) time.Time {
	if op.ReceivedAt.IsZero() {
		return op.AcceptedAt
	}
	return op.ReceivedAt
}

// adopt returns an actor that has not begun, nil if the key needs none, and
// since when the process is wanted down; zero if it is not.
func (e *Engine) adopt(key string, text json.RawMessage) (a *actor, down time.Time) {
	a = newActor(e, key)
	if err := a.restore(text); err != nil {
		e.cfg.Log.WithError(err).WithField("process", key).Error("process unmanaged: record unreadable")
		return nil, time.Time{}
	}
	if a.state.Desired == supervise.Down && a.forgettable() {
		e.lay(a)
		return nil, a.stoppedAt
	}
	if a.state.Kept {
		e.owners.mark(e.markOf(&a.spec), &a.spec)
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.settle()
	}
	e.owners.keepMates(key, slices.DeleteFunc(slices.Clone(a.instances), func(id proc.Identity) bool { return !proc.Alive(id) }))
	if a.state.Desired == supervise.Up && isPeriodic(&a.spec) {
		a.replan()
	}
	a.publish()
	a.awaitLook()
	a.mailbox.put(supervise.Recovered{NotBefore: a.notBefore()})
	if a.state.Desired == supervise.Up {
		e.countSupervised(true)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.actors[key] = a
	return a, a.stoppedAt
}

// notBefore is the first moment of an automatic start: on a host that has just
// booted, what starts processes at the boot goes first.
func (a *actor) notBefore() supervise.Moment {
	t := a.engine.cfg.Timing
	earliest := supervise.Moment(t.BootUptime)
	if a.booted {
		earliest = max(earliest, a.engine.now()+supervise.Moment(t.BootGrace))
	}
	return earliest
}

// takeUp judges an operation that an earlier agent process had begun. Whether
// its command was run at all is not known, so it is never run again: only what
// is there now counts.
func (r *run) takeUp(ctx context.Context, exec journal.Exec) verdict {
	var was before
	if err := json.Unmarshal(exec.Before, &was); err != nil {
		r.warn("what ran before the operation is not known: %v", err)
	}
	if startsProcess(r.op.Action) {
		r.began, r.beganTicks = exec.At, was.Ticks
	}
	if !r.outlast(ctx, exec) || r.unrecorded(exec) && !r.outlastUnrecorded(ctx, was.Main) {
		return interrupted()
	}
	r.warn("recovered after the agent restarted during the operation")
	switch r.op.Action {
	case agentproto.ActionStart, agentproto.ActionRestart:
		return r.takeUpStart(ctx, was)
	case agentproto.ActionStop, agentproto.ActionKill:
		return r.takeUpStop(ctx)
	}
	r.look(ctx)
	return commandFailed("interrupted by agent restart, outcome unknown")
}

// outlast waits for the command of the earlier agent process to end, at most
// the rest of its time, and ends it then.
func (r *run) outlast(ctx context.Context, exec journal.Exec) bool {
	leader := leaderOf(exec)
	r.leader = leader
	if exec.PID != 0 {
		r.engine.groups.add(exec.PID)
		defer r.engine.groups.remove(exec.PID)
	}
	deadline := exec.At.Add(opTimeout(&r.op.Spec))
	for proc.Alive(leader) {
		if r.look(ctx); startsProcess(r.op.Action) && r.inCommand(proc.Identity{}) {
			return ctx.Err() == nil
		}
		if time.Now().After(deadline) {
			r.endRest(ctx, leader)
			break
		}
		if !pause(ctx, r.engine.cfg.Timing.WindowPoll) {
			return false
		}
	}
	return ctx.Err() == nil
}

func leaderOf(exec journal.Exec) proc.Identity {
	return proc.Identity{BootID: exec.BootID, PID: exec.PID, Start: exec.Start}
}

func (r *run) endRest(ctx context.Context, leader proc.Identity) {
	if err := proc.KillGroup(ctx, leader, r.engine.cfg.Timing.KillGrace, identities(r.seen.Procs)...); err != nil {
		r.warn("hung command: %v", err)
	}
}

// unrecorded reports whether a start command may be under way though its pid
// was not noted. Without a time of its beginning none was about to be run.
func (r *run) unrecorded(exec journal.Exec) bool {
	return exec.PID == 0 && exec.BootID == r.engine.bootID && r.beganTicks != 0
}

func (r *run) takeUpStart(ctx context.Context, was before) verdict {
	replaced := was.Main
	if r.op.Spec.RestartInPlace {
		replaced = proc.Identity{}
	}
	v := r.window(ctx, ctx, replaced)
	if v.class == supervise.Failed && r.seen.Verdict == proc.Stopped && !lives(&r.op.Spec) {
		return commandFailed("agent restarted during operation; whether the process ran is not known", r.seen.Evidence)
	}
	if v.class == supervise.Failed && r.seen.Verdict == proc.Stopped {
		return commandFailed("agent restarted during operation; process not running", r.seen.Evidence)
	}
	return v
}

func (r *run) takeUpStop(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	if main := r.main(); r.op.Action == agentproto.ActionKill && !main.IsZero() {
		if err := proc.ThawTree(main, r.killScope()); err != nil { // the earlier agent may have stopped it
			r.warn("%v", err)
		}
	}
	v := r.gone(ctx, r.seen.Procs, ms(r.op.Spec.StopCheckMS), "")
	if main := r.main(); v.class == supervise.Failed && !main.IsZero() {
		return checkFailed(fmt.Sprintf("interrupted by agent restart; still running pid %d", main.PID))
	}
	return v
}
