package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// freezesChanged requests an actor to check whether its process is frozen.
type freezesChanged struct{}

// Apply replaces the server's settings for this host. It does not wait. Call it with the
// stored settings before [Engine.Recover], so that no frozen process is started.
func (e *Engine) Apply(s agentproto.Settings) {
	e.settings.Store(&s)
	e.remindAll(freezesChanged{})
}

// frozenUntil returns the end, by the server's time, of the freeze of a namespace; zero = not
// frozen.
func (e *Engine) frozenUntil(namespace string) (until time.Time) {
	for _, f := range e.settings.Load().Freezes {
		if (f.Namespace == "" || f.Namespace == namespace) && f.Until.After(until) && e.cfg.InTime(f.Until) {
			until = f.Until
		}
	}
	return until
}

func (r *registry) remindAll(msg message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.actors {
		a.mailbox.remind(msg)
	}
}

// thaw returns a function that reminds the actors if the settings have changed or a freeze has
// ended since its last call.
func (e *Engine) thaw() func() {
	var before int
	var applied *agentproto.Settings
	return func() {
		settings, inTime := e.settings.Load(), 0
		for _, f := range settings.Freezes {
			if e.cfg.InTime(f.Until) {
				inTime++
			}
		}
		if settings != applied || inTime != before {
			e.remindAll(freezesChanged{})
		}
		applied, before = settings, inTime
	}
}

func (a *actor) refreeze(ctx context.Context) {
	a.frozenUntil = a.engine.frozenUntil(a.memory.Spec.Namespace)
	a.suspend(ctx)
}

// suspend suspends automatic starts and terminations while the process is frozen or its
// record unconfirmed, and resumes them afterwards.
func (a *actor) suspend(ctx context.Context) {
	if suspended := a.unconfirmed() || !a.frozenUntil.IsZero(); suspended != a.state.Paused {
		a.log.WithField("held", suspended).Debug("freeze changed")
		a.step(ctx, supervise.Pause{On: suspended}, nil)
		return
	}
	a.publish()
}
