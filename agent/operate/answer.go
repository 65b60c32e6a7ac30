package operate

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// beside does work on one key in a goroutine that Stop waits for, or not at all
// after Stop.
func (e *Engine) beside(key, what string, fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return
	}
	e.work.Go(func() {
		defer e.rescue(key, what, func(cause string) { e.fault(key, cause) })
		fn()
	})
}

// turnAway ends an operation that is not carried out.
func (e *Engine) turnAway(ctx context.Context, op journal.Op, v verdict) {
	e.beside(op.Spec.Key, "refusal", func() {
		result := e.result(op, v, time.Now().UTC())
		if v.code == agentproto.CodeFailed {
			result.Status = e.statusBeside(ctx, op)
		}
		e.finish(ctx, op, result)
	})
}

// statusBeside is how the process of an operation that is not carried out
// stands; nil if the agent fails at that.
func (e *Engine) statusBeside(ctx context.Context, op journal.Op) (st *agentproto.Status) {
	defer e.rescue(op.Spec.Key, "refusal", func(cause string) { e.fault(op.Spec.Key, cause) })
	r := e.observer(op)
	r.look(ctx)
	return e.snapshotOf(op.Spec.Key).status(r.facts())
}

// answer ends a status operation. It waits for no other operation.
func (e *Engine) answer(op journal.Op) {
	if e.late(&op) {
		e.turnAway(e.life, op, expired(&op))
		return
	}
	e.beside(op.Spec.Key, "status", func() {
		if result, ok := e.inspect(op); ok {
			e.finish(e.life, op, result)
		}
	})
}

// inspect looks at the process. It reports false when the engine ended first.
func (e *Engine) inspect(op journal.Op) (result agentproto.Result, ok bool) {
	started := time.Now().UTC()
	defer e.rescue(op.Spec.Key, "status", func(cause string) {
		result, ok = e.result(op, abnormal("internal error: "+cause), started), true
		e.fault(op.Spec.Key, cause)
	})
	ctx, cancel := context.WithTimeout(e.life, e.cfg.Timing.Inquiry)
	defer cancel()
	r := e.observer(op)
	v := succeeded()
	if r.look(e.life); r.seen.Verdict == proc.Uncertain {
		v = abnormal("state uncertain: " + r.seen.Evidence)
	}
	if e.life.Err() != nil {
		return agentproto.Result{}, false
	}
	result = e.result(op, v, started)
	if v.code == agentproto.CodeSuccess {
		f := r.facts()
		r.inquire(ctx, &f)
		result.Status = e.snapshotOf(op.Spec.Key).status(f)
		result.FinishedAt = time.Now().UTC()
	}
	return result, true
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
			log.WithError(err).Error("result held until the journal is writable")
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
