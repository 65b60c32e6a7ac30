package operate

import (
	"context"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// restart replaces the process. A process that does not run is started.
func (r *run) restart(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	was, spec := r.main(), &r.op.Spec
	if spec.RestartInPlace {
		was = proc.Identity{}
	}
	if spec.RestartCmd != "" {
		return r.bringUp(ctx, ctx, spec.RestartCmd, was)
	}
	if !r.found().IsZero() {
		if v := r.takeDown(ctx); v.class != supervise.Done {
			return v
		}
	}
	return r.bringUp(ctx, ctx, spec.StartCmd, was)
}

// reload lets the running process take up changes. The command may as well
// replace the process, so it is only asked to leave one running.
func (r *run) reload(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	was := r.main()
	if bad := r.mark(); bad != nil {
		return *bad
	}
	trouble, done, bad := r.complete(ctx, r.op.Spec.ReloadCmd, was)
	if bad != nil {
		return *bad
	}
	defer done()
	if trouble != "" {
		r.look(ctx)
		return commandFailed(trouble)
	}
	begin, _ := startWindow(&r.op.Spec)
	if !pause(ctx, min(begin, r.engine.cfg.Timing.ReloadWait)) {
		return interrupted()
	}
	if r.look(ctx); r.seen.Verdict == proc.Stopped && !was.IsZero() {
		if !pause(ctx, r.engine.cfg.Timing.Settle) {
			return interrupted()
		}
		r.look(ctx) // a successor may have come up
	}
	switch {
	case r.seen.Verdict == proc.Uncertain:
		return refused("state uncertain: " + r.seen.Evidence)
	case r.main().IsZero() && !was.IsZero():
		return checkFailed("process died", r.seen.Evidence, r.tail())
	}
	return succeeded()
}

// register takes the process into supervision; one that does not run is
// started by it later.
func (r *run) register(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	if r.op.Spec.Type != resident && !isPeriodic(&r.op.Spec) {
		r.warn("process_type %s: the process is not kept alive", r.op.Spec.Type)
	}
	if r.main().IsZero() {
		return succeeded()
	}
	if bad := r.claim(); bad != nil {
		return *bad
	}
	return succeeded()
}

// release leaves the process alone from now on, whatever state it is in.
func (r *run) release(ctx context.Context) verdict {
	r.look(ctx)
	return succeeded()
}
