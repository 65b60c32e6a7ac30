package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// carryOut runs an operation to its end. It reports false when the engine
// ended first: the operation stays open then.
func (r *run) carryOut(ctx context.Context, o order) (ended, bool) {
	started := time.Now().UTC()
	v := r.attempt(ctx, o)
	if v.class == supervise.Interrupted {
		return ended{}, false
	}
	if r.acted || o.interrupted != nil {
		v = v.tried()
	}
	done := ended{
		id:      opID(r.op.ID),
		outcome: r.outcome(v),
		result:  r.engine.result(r.op, v, started),
		aliases: r.known.aliases, instances: r.instances(), pidFileWritten: r.seen.PidFileWritten,
	}
	if v.code != agentproto.CodeAgentAbnormal {
		done.facts = r.facts()
		if startsProcess(r.op.Action) {
			r.warnings = append(r.warnings, unenforced(&r.op.Spec)...)
		}
	}
	done.result.Warnings = clipAll(r.warnings, agentproto.MaxMessage)
	return done, true
}

// attempt is the operation itself. A fault in it must not take the agent down.
func (r *run) attempt(ctx context.Context, o order) (v verdict) {
	defer r.engine.rescue(r.op.Spec.Key, "operation", func(cause string) {
		r.seen = proc.Probe{Verdict: proc.Uncertain}
		v = abnormal("internal error: " + cause)
		r.engine.fault(r.op.Spec.Key, cause)
	})
	if o.interrupted != nil {
		return r.takeUp(ctx, *o.interrupted)
	}
	if r.late() {
		return r.expire(ctx)
	}
	switch r.op.Action {
	case agentproto.ActionStart:
		return r.start(ctx)
	case agentproto.ActionStop:
		return r.stop(ctx)
	case agentproto.ActionRestart:
		return r.restart(ctx)
	case agentproto.ActionReload:
		return r.reload(ctx)
	case agentproto.ActionKill:
		return r.kill(ctx)
	case agentproto.ActionSupervise:
		return r.register(ctx)
	case agentproto.ActionRelease:
		return r.release(ctx)
	}
	return abnormal(fmt.Sprintf("action %q has no procedure", r.op.Action))
}

// expire refuses the operation and looks at the process all the same: the
// process's machine and whoever reads the result learn where it stands.
func (r *run) expire(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil && bad.class == supervise.Interrupted {
		return *bad
	}
	return expired(&r.op)
}

// autoStart brings a supervised process up again, unless it runs. It ends
// early when way does, as soon as no command of it is under way.
func (r *run) autoStart(ctx, way context.Context) (msg autoStarted) {
	defer r.engine.rescue(r.op.Spec.Key, "automatic start", func(cause string) {
		msg = autoStarted{outcome: supervise.Outcome{Class: supervise.Failed, Sight: supervise.Doubt}}
		r.engine.fault(r.op.Spec.Key, cause)
	})
	gate := r.engine.gate
	if isPeriodic(&r.op.Spec) {
		gate = r.engine.runs
	}
	if !gate.enter(way, r.due) {
		return autoStarted{outcome: supervise.Outcome{Class: supervise.Interrupted, Sight: supervise.Doubt}}
	}
	ran := false
	defer func() { gate.leave(ran) }()
	v := r.ensure(ctx, way)
	ran = r.command != nil
	return autoStarted{
		outcome: r.outcome(v), aliases: r.known.aliases, instances: r.instances(), trouble: v.message,
		pidFileWritten: r.seen.PidFileWritten,
		ran:            ran || r.resumed, over: v.class != supervise.Interrupted || r.startOver(),
	}
}

// startOver reports whether, though the automatic start was interrupted, no
// start command is under way and no process is just coming up.
func (r *run) startOver() bool {
	switch {
	case !r.awaited:
		return false
	case r.command == nil:
		return true
	}
	select {
	case <-r.command.exec.Done():
		return !r.main().IsZero()
	default:
		return false
	}
}

func (r *run) ensure(ctx, way context.Context) verdict {
	if v, up := r.awaitLeft(ctx, way); up {
		return v
	}
	if bad := r.ready(way); bad != nil {
		return *bad
	}
	switch {
	case r.lookAlike():
		v := succeeded()
		v.message = "not started beside a look-alike: " + r.seen.Evidence
		return v
	case r.main().IsZero():
		return r.bringUp(ctx, way, startLine(&r.op.Spec), proc.Identity{})
	}
	if bad := r.claim(); bad != nil {
		return *bad
	}
	return succeeded()
}

// awaitLeft lets a start command that an earlier automatic start left under way
// end, and gives its process the time to come up: a second one beside it could
// make two processes. It reports false when the process has to be started.
func (r *run) awaitLeft(ctx, way context.Context) (verdict, bool) {
	left := r.left
	if left.At.IsZero() || left.BootID != r.engine.bootID {
		r.awaited = true
		return verdict{}, false
	}
	var was before
	if err := json.Unmarshal(left.Before, &was); err != nil {
		r.warn("when the start command began is not known: %v", err)
	}
	r.began, r.beganTicks = left.At, was.Ticks
	if !r.outlast(ctx, left) || left.PID == 0 && !r.outlastUnrecorded(ctx, proc.Identity{}) {
		return interrupted(), true
	}
	v := r.window(ctx, way, proc.Identity{})
	r.awaited = ctx.Err() == nil
	r.resumed = v.class == supervise.Done
	return v, v.class != supervise.Failed
}

// awaitAlone does the same for an operation, which begins as soon as the
// process is there. It reports false when ctx ended first.
func (r *run) awaitAlone(ctx context.Context) bool {
	hurried, hurry := context.WithCancel(ctx)
	hurry()
	r.awaitLeft(ctx, hurried)
	return ctx.Err() == nil
}

// outlastUnrecorded waits for a start command whose agent ended before it could
// note the pid: what leads a session, carries the mark of this process and is
// not the process may be it. It is not ended when its time is up, since that is
// no proof. was is the process that the command replaces; zero = none.
func (r *run) outlastUnrecorded(ctx context.Context, was proc.Identity) bool {
	deadline := r.began.Add(opTimeout(&r.op.Spec))
	for time.Now().Before(deadline) {
		if r.look(ctx); !r.main().IsZero() && r.main() != was || !r.commandLeft() {
			break
		}
		if !pause(ctx, r.engine.cfg.Timing.WindowPoll) {
			return false
		}
	}
	return ctx.Err() == nil
}

func (r *run) commandLeft() bool {
	strays, err := r.engine.finder.Strays(r.killScope())
	return err == nil && slices.ContainsFunc(strays, func(p proc.Process) bool {
		return p.PID == p.Session && p.Start >= r.beganTicks
	})
}
