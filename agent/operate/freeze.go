package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Apply takes over what the server wants of this host, in the place of what it
// wanted before. It does not wait. Call it before [Engine.Recover] with what is
// known then, so that nothing frozen is started meanwhile.
func (e *Engine) Apply(s agentproto.Settings) {
	e.settings.Store(&s)
	e.refreeze()
}

// frozenUntil is until when, by the server's time, the processes of a namespace
// are left alone; zero = they are not.
func (e *Engine) frozenUntil(namespace string) (until time.Time) {
	for _, f := range e.settings.Load().Freezes {
		if (f.Namespace == "" || f.Namespace == namespace) && f.Until.After(until) && e.cfg.InTime(f.Until) {
			until = f.Until
		}
	}
	return until
}

// refreeze has every process find out whether it is frozen.
func (e *Engine) refreeze() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.actors {
		a.mailbox.remind(freezesChanged{})
	}
}

// thaw notices the ends of freezes.
func (e *Engine) thaw() {
	tick := time.NewTicker(e.cfg.Timing.FreezeCheck)
	defer tick.Stop()
	var held int
	var seen *agentproto.Settings
	for {
		select {
		case <-e.life.Done():
			return
		case <-tick.C:
		}
		settings, inTime := e.settings.Load(), e.freezesInTime()
		if settings != seen || inTime != held {
			e.refreeze()
		}
		seen, held = settings, inTime
	}
}

func (e *Engine) freezesInTime() (n int) {
	for _, f := range e.settings.Load().Freezes {
		if e.cfg.InTime(f.Until) {
			n++
		}
	}
	return n
}

// freezesChanged has a process find out whether it is frozen.
type freezesChanged struct{}

func (a *actor) refreeze(ctx context.Context) {
	a.frozenUntil = a.engine.frozenUntil(a.names().namespace)
	a.hold(ctx)
}

// hold suspends automatic starts and take-downs, or lets them happen: they wait
// for the end of a freeze, and for a word where the journal is in doubt.
func (a *actor) hold(ctx context.Context) {
	if held := a.doubtful() || !a.frozenUntil.IsZero(); held != a.state.Held {
		a.log.WithField("held", held).Debug("freeze changed")
		a.step(ctx, supervise.Hold{On: held}, nil)
		return
	}
	a.publish()
}
