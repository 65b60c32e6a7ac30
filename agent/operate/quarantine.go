package operate

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// maxFaults is how many faults of the agent with one process it takes until it
// leaves that process alone.
const maxFaults = 3

// rescue, deferred, keeps a fault in work on one key from ending the agent.
// instead is told the cause.
func (e *Engine) rescue(key, what string, instead func(cause string)) {
	if cause := recover(); cause != nil {
		e.cfg.Log.WithField("process", key).WithField("error", fmt.Sprint(cause)).
			WithField("stack", string(debug.Stack())).Error(what + " panicked")
		instead(fmt.Sprint(cause))
	}
}

// faulted says that the agent itself failed at this process.
type faulted struct{ cause string }

// fault is safe for concurrent use.
func (a *actor) fault(cause string) { a.mailbox.put(faulted{cause: cause}) }

// faulted counts the agent's own faults with this process; what it is is not
// known until a look was concluded.
func (a *actor) faulted(ctx context.Context, msg faulted) {
	a.faults++
	switch {
	case a.faults == maxFaults:
		a.quarantine(ctx, msg.cause)
	case a.faults < maxFaults && a.state.Work == supervise.Idle:
		a.state.Phase = supervise.Unknown
		a.step(ctx, supervise.Swept{}, nil)
	}
}

func (a *actor) quarantined() bool { return a.faults >= maxFaults }

// quarantine leaves the process alone until the agent starts anew: whatever
// goes wrong with it may do harm to it and must not do so to others.
func (a *actor) quarantine(ctx context.Context, cause string) {
	a.state.Phase = supervise.Unknown
	a.disarm()
	a.stopWatching()
	a.giveWay()
	for id, o := range a.ops {
		if a.state.Work != supervise.Operating || id != a.state.Op.ID {
			delete(a.ops, id)
			a.engine.turnAway(ctx, o.op, inQuarantine())
		}
	}
	a.publish()
	a.log.WithField("error", cause).Error("process quarantined after repeated panics; restart the agent")
	a.announce(agentproto.Event{
		Kind: agentproto.EventQuarantined, PID: a.state.Main.PID,
		Message: fmt.Sprintf("the agent failed at it %d times, lately by %q, and leaves it alone until the agent is restarted", maxFaults, cause),
	})
}

func inQuarantine() procop.Completion {
	return procop.Abnormal("the agent failed at this process repeatedly and leaves it alone; see its log, and restart it")
}

// handleQuarantined handles a message of a process that is left alone: what is under
// way ends, and nothing begins.
func (a *actor) handleQuarantined(ctx context.Context, msg message) {
	switch msg := msg.(type) {
	case submission:
		a.engine.turnAway(ctx, msg.order.op, inQuarantine())
	case ended:
		defer a.engine.drain.end()
		order := a.ops[msg.id]
		delete(a.ops, msg.id)
		a.engine.finish(ctx, order.op, msg.result)
	case autoSpawned:
		a.spawned(msg)
	case condemned:
		msg.ended(procop.TerminationEnd{})
	case takenDown:
		a.engine.drain.end()
		a.tellCondemner(msg.end)
	case autoStarted:
		a.engine.drain.end()
	}
}
