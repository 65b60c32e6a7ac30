package operate

import (
	"context"
	"fmt"
	"runtime/debug"
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
	done := ended{
		id:      opID(r.op.ID),
		outcome: r.outcome(v.class),
		result:  r.engine.result(r.op, v, started),
		aliases: r.known.aliases,
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
	defer func() {
		if cause := recover(); cause != nil {
			r.engine.cfg.Log.WithField("process", r.op.Spec.Key).WithField("error", fmt.Sprint(cause)).
				WithField("stack", string(debug.Stack())).Error("operation panicked")
			r.seen = proc.Probe{Verdict: proc.Uncertain}
			v = abnormal(fmt.Sprintf("internal error: %v", cause))
		}
	}()
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
	defer func() {
		if cause := recover(); cause != nil {
			r.engine.cfg.Log.WithField("process", r.op.Spec.Key).WithField("error", fmt.Sprint(cause)).
				WithField("stack", string(debug.Stack())).Error("automatic start panicked")
			msg = autoStarted{outcome: supervise.Outcome{Class: supervise.Failed, Sight: supervise.Doubt}}
		}
	}()
	if !r.engine.startSlots.take(way) {
		return autoStarted{outcome: supervise.Outcome{Class: supervise.Interrupted, Sight: supervise.Doubt}}
	}
	defer r.engine.startSlots.give()
	v, ran := r.ensure(ctx, way)
	return autoStarted{
		outcome: r.outcome(v.class),
		aliases: r.known.aliases, ran: ran, trouble: v.message,
	}
}

// ensure reports as well whether it had to run a command.
func (r *run) ensure(ctx, way context.Context) (v verdict, ran bool) {
	if v, up := r.awaitLeft(ctx, way); up {
		return v, false
	}
	if bad := r.ready(way); bad != nil {
		return *bad, false
	}
	switch {
	case r.lookAlike():
		v = succeeded()
		v.message = "not started beside a look-alike: " + r.seen.Evidence
		return v, false
	case r.main().IsZero():
		return r.bringUp(ctx, way, startLine(&r.op.Spec), proc.Identity{}), true
	}
	if bad := r.claim(); bad != nil {
		return *bad, false
	}
	return succeeded(), false
}

// awaitLeft lets a start command that an earlier agent process had begun end,
// and gives its process the time to come up: a second one beside it could make
// two processes. It reports false when the process has to be started.
func (r *run) awaitLeft(ctx, way context.Context) (verdict, bool) {
	if !proc.Alive(leaderOf(r.left)) {
		return verdict{}, false
	}
	if !r.outlast(ctx, r.left) {
		return interrupted(), true
	}
	v := r.window(ctx, way, proc.Identity{})
	return v, v.class != supervise.Failed
}
