package operate

import (
	"fmt"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// errCanceled is the cause of an interruption by [Engine.Interrupt].
var errCanceled = fmt.Errorf("interrupted: the task was canceled")

// Interrupt terminates the command of an operation of the process key: SIGTERM, then SIGKILL
// after the stop grace of its spec. It does nothing if the operation is not running, and does
// not wait.
func (e *Engine) Interrupt(key string, id journal.ID) {
	e.withActor(key, func(a *actor) { a.mailbox.put(preemption{id: opID(id), cause: errCanceled}) })
}

// preempt ends the running operation if it is the one of the request. It waits for a command
// of an earlier agent process whose pid is unknown: the command could not be terminated.
func (a *actor) preempt(p preemption) {
	if a.state.Work != supervise.Operating || a.state.Op.ID != p.id || a.running == nil {
		return
	}
	if left := a.ops[p.id].interrupted; left == nil || left.PID != 0 {
		a.running(p.cause)
	}
}

// preemptFor ends the running stop, restart or reload for a new kill, which does not wait for
// a hung command of its process. It does not end a start: a daemon that is leaving the start
// command could survive the kill. The state machine refuses the operations that wait before
// the kill.
func (a *actor) preemptFor(op *journal.Op) {
	switch a.state.Op.Action {
	case supervise.Stop, supervise.Restart, supervise.Reload:
	default:
		return
	}
	if op.Action == agentproto.ActionKill {
		a.preempt(preemption{id: a.state.Op.ID, cause: fmt.Errorf("terminated by kill of task %s", op.Task)})
	}
}
