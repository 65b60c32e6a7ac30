package operate

import (
	"context"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// condemned asks for the end of a process.
type condemned struct {
	event supervise.Condemned
	ended func(procop.TerminationEnd) // told exactly once; must not block
}

// takeDown asks for the end of exactly this process of a key, which is over a
// limit. Nothing happens while an operation is carried out, while the process is
// frozen or its state uncertain; whoever asks does so again as long as there is
// reason to. It does not wait.
func (e *Engine) takeDown(key string, main proc.Identity, ended func(procop.TerminationEnd)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a, ok := e.actors[key]
	if !ok {
		ended(procop.TerminationEnd{})
		return
	}
	a.mailbox.put(condemned{event: supervise.Condemned{Main: supervise.Identity(main), Why: supervise.OverLimit}, ended: ended})
}

// condemn lets the machine decide.
func (a *actor) condemn(ctx context.Context, msg condemned) {
	busy := a.state.Work != supervise.Idle
	defer func() {
		if !busy && a.state.Work == supervise.TakingDown {
			a.condemner = msg.ended
		} else {
			msg.ended(procop.TerminationEnd{})
		}
	}()
	a.step(ctx, msg.event, nil)
}

// takeDown ends the process beside the goroutine.
func (a *actor) takeDown(ctx context.Context, effect supervise.TakeDown) {
	if !a.engine.drain.begin() {
		return
	}
	a.takingDown = effect.Why
	work := a.engine.host.Termination(&a.spec, a.know(&a.spec))
	a.engine.work.Go(func() { a.mailbox.put(a.terminate(ctx, work, proc.Identity(effect.Main))) })
}

func (a *actor) takenDown(ctx context.Context, msg takenDown) {
	defer a.engine.drain.end()
	defer a.tellCondemner(msg.end)
	main := a.state.Main
	a.step(ctx, supervise.TakenDown{Outcome: msg.outcome}, nil)
	entry := a.log.WithField("pid", main.PID).WithField("why", string(a.takingDown))
	switch {
	case msg.outcome.Class == supervise.Interrupted:
	case !msg.end.Gone:
		entry.WithField("reason", msg.end.Trouble).Error("process not terminated")
	default:
		entry.WithField("how", msg.end.How).Warn("process terminated")
	}
	for _, warning := range msg.end.Warnings {
		entry.WithField("reason", warning).Warn("process termination incomplete")
	}
}

func (a *actor) tellCondemner(end procop.TerminationEnd) {
	if tell := a.condemner; tell != nil {
		a.condemner = nil
		tell(end)
	}
}

// terminate ends the process and no other.
func (a *actor) terminate(ctx context.Context, work *procop.Termination, main proc.Identity) (msg takenDown) {
	defer a.engine.rescue(a.key, "take-down", func(cause string) {
		msg = takenDown{outcome: supervise.Outcome{Class: supervise.Failed, Sight: supervise.Doubt}, end: work.Failed(cause)}
		a.fault(cause)
	})
	report, end := work.Run(ctx, main)
	return takenDown{outcome: report.Outcome, end: end}
}
