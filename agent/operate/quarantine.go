package operate

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/supervise"
)

// maxPanics is the number of panics in the work on one process after which the agent
// quarantines the process.
const maxPanics = 3

// rescue, which must be deferred, recovers from a panic in the work on one key. It passes the
// cause to handle, if not nil, and makes the key's actor count the panic.
func (e *Engine) rescue(key, work string, handle func(cause string)) {
	if cause := recover(); cause != nil {
		e.cfg.Log.WithField("process", key).WithField("error", fmt.Sprint(cause)).
			WithField("stack", string(debug.Stack())).Error(work + " panicked")
		if handle != nil {
			handle(fmt.Sprint(cause))
		}
		e.withActor(key, func(a *actor) { a.mailbox.put(panicked{cause: fmt.Sprint(cause)}) })
	}
}

// panicked reports a panic in the work on the process.
type panicked struct{ cause string }

// quarantine stops all work on a process over which the agent panics repeatedly.
type quarantine struct{ *actor }

// countPanic imposes the quarantine after maxPanics panics. Before that, it makes the state of
// the process unknown until the next search.
func (a quarantine) countPanic(ctx context.Context, msg panicked) {
	a.panics++
	switch {
	case a.panics == maxPanics:
		a.impose(ctx, msg.cause)
	case a.panics < maxPanics && a.state.Work == supervise.Idle:
		a.state.Phase = supervise.Unknown
		a.step(ctx, supervise.Swept{}, nil)
	}
}

func (a *actor) quarantined() bool { return a.panics >= maxPanics }

// impose stops all work on the process until the agent is restarted, so that further panics
// do not harm this process or others.
func (a quarantine) impose(ctx context.Context, cause string) {
	a.state.Phase = supervise.Unknown
	a.auto.disarm()
	a.watch.stop()
	a.auto.yield()
	for id, o := range a.ops {
		if a.state.Work != supervise.Operating || id != a.state.Op.ID {
			delete(a.ops, id)
			a.engine.reject(ctx, o.op, inQuarantine())
		}
	}
	a.publish()
	reporter(a).quarantineImposed(cause)
}

func inQuarantine() procop.Completion {
	return procop.Abnormal("the agent failed at this process repeatedly and does not act on it until it is restarted; see its log")
}

// handle handles a message about a quarantined process: work in progress is completed, and no
// work begins.
func (a quarantine) handle(ctx context.Context, msg message) {
	switch msg := msg.(type) {
	case order:
		a.engine.reject(ctx, msg.op, inQuarantine())
	case completed:
		defer a.engine.drain.end()
		order := a.ops[msg.id]
		delete(a.ops, msg.id)
		a.engine.finish(ctx, order.op, msg.result)
	case startSpawned:
		automation(a).startSpawned(msg)
	case terminateRequest:
		msg.ended(procop.TerminationEnd{})
	case terminated:
		a.engine.drain.end()
		a.auto.reportEnd(msg.end)
	case autoStarted:
		a.engine.drain.end()
	}
}
