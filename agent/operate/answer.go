package operate

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// beside runs fn in a goroutine that Stop waits for, or not at all after Stop.
func (e *Engine) beside(fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.work.Go(fn)
	}
}

// turnAway ends an operation that is not carried out.
func (e *Engine) turnAway(ctx context.Context, op journal.Op, v verdict) {
	e.beside(func() {
		result := e.result(op, v, time.Now().UTC())
		if v.code == agentproto.CodeFailed {
			r := e.observer(op)
			r.look(ctx)
			result.Status = e.snapshotOf(op.Spec.Key).status(r.facts())
		}
		e.finish(ctx, op, result)
	})
}

// answer ends a status operation. It waits for no other operation.
func (e *Engine) answer(op journal.Op) {
	if e.late(&op) {
		e.turnAway(e.life, op, expired(&op))
		return
	}
	e.beside(func() {
		started := time.Now().UTC()
		r := e.observer(op)
		v := succeeded()
		if r.look(e.life); r.seen.Verdict == proc.Uncertain {
			v = abnormal("state uncertain: " + r.seen.Evidence)
		}
		if e.life.Err() != nil {
			return
		}
		result := e.result(op, v, started)
		if v.code == agentproto.CodeSuccess {
			result.Status = e.snapshotOf(op.Spec.Key).status(r.facts())
		}
		e.finish(e.life, op, result)
	})
}

// observer is a run that only looks, with what is known of the key.
func (e *Engine) observer(op journal.Op) *run {
	r := &run{engine: e, op: op, name: actionNames[op.Action]}
	if s := e.snapshotOf(op.Spec.Key); !s.kept || sameProgram(&s.spec, &op.Spec) {
		r.known = s.known
	}
	return r
}

func (e *Engine) result(op journal.Op, v verdict, started time.Time) agentproto.Result {
	return agentproto.Result{
		Item: op.Item, Code: v.code, Reason: v.reason, Message: v.text(actionNames[op.Action]),
		AcceptedAt: op.AcceptedAt, StartedAt: started, FinishedAt: time.Now().UTC(),
	}
}

// finish makes a result durable, however long that takes, and tells it.
func (e *Engine) finish(ctx context.Context, op journal.Op, result agentproto.Result) {
	if result.Status != nil {
		result.Status.AgentID = e.cfg.AgentID
	}
	fit(&result)
	e.cfg.Crash(CrashBeforeDone)
	log := e.cfg.Log.WithFields(logrus.Fields{
		"task": op.Task, "item": op.Item, "process": op.Spec.Key, "action": op.Action, "code": result.Code,
	})
	for attempt := 0; ; attempt++ {
		err := e.cfg.Ledger.Finish(op.ID, result)
		if err == nil {
			break
		}
		if attempt == 0 {
			log.WithError(err).Error("result is held back until the journal takes it")
		}
		if !pause(ctx, e.cfg.Timing.JournalRetry) {
			return
		}
	}
	tell := log.Info
	if op.Action == agentproto.ActionStatus {
		tell = log.Debug
	}
	tell("operation finished")
	e.cfg.Crash(CrashAfterDone)
	e.cfg.Finished(op, result)
}
