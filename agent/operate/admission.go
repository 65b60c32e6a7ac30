package operate

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// spawn runs fn in a goroutine that Stop waits for. key and work describe fn in the log if it
// panics. After Stop, spawn does nothing.
func (e *Engine) spawn(key, work string, fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return
	}
	e.work.Go(func() {
		defer e.rescue(key, work, nil)
		fn()
	})
}

// reject finishes an operation that is not carried out with the completion c.
func (e *Engine) reject(ctx context.Context, op journal.Op, c procop.Completion) {
	e.spawn(op.Spec.Key, "refusal", func() {
		result := e.result(op, c, time.Now().UTC())
		if c.Code == agentproto.CodeFailed {
			result.Status = inspector{e}.statusOf(ctx, op)
		}
		e.finish(ctx, op, result)
	})
}

func (e *Engine) result(op journal.Op, c procop.Completion, started time.Time) agentproto.Result {
	return agentproto.Result{
		Item: op.Item, Code: c.Code, Reason: c.Reason, Refusal: c.Refusal, Message: c.Text(procspec.ActionName(op.Action)),
		AcceptedAt: op.AcceptedAt, StartedAt: started, FinishedAt: time.Now().UTC(),
	}
}

// finish persists a result, retrying until that succeeds or ctx ends, and then reports it.
func (e *Engine) finish(ctx context.Context, op journal.Op, result agentproto.Result) {
	if result.Status != nil {
		result.Status.AgentID = e.cfg.AgentID
	}
	procop.Fit(&result)
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
			log.WithError(err).Error("result not persisted, retrying")
		}
		select {
		case <-time.After(e.cfg.Timing.JournalRetry):
		case <-ctx.Done():
			return
		}
	}
	logDone := log.Info
	if op.Action == agentproto.ActionStatus {
		logDone = log.Debug
	}
	logDone("operation finished")
	e.cfg.Crash(CrashAfterDone)
	e.cfg.Finished(op, result)
}

// inspector determines the state of processes for results.
type inspector struct{ *Engine }

// answer carries out a status operation. It waits for no other operation.
func (e inspector) answer(op journal.Op) {
	if e.host.Late(&op) {
		e.reject(e.life, op, procop.Expired(&op))
		return
	}
	e.spawn(op.Spec.Key, "status", func() {
		if result, ok := e.inspect(op); ok {
			e.finish(e.life, op, result)
		}
	})
}

// inspect returns the result of a status operation. It reports false if the engine
// ended first.
func (e inspector) inspect(op journal.Op) (result agentproto.Result, ok bool) {
	started := time.Now().UTC()
	defer e.rescue(op.Spec.Key, "status", func(cause string) {
		result, ok = e.result(op, procop.Abnormal("internal error: "+cause), started), true
	})
	ctx, cancel := context.WithTimeout(e.life, e.cfg.Timing.Inquiry)
	defer cancel()
	report := e.probe(&op.Spec).Run(e.life)
	if e.life.Err() != nil {
		return agentproto.Result{}, false
	}
	result = e.result(op, report.Completion, started)
	if report.Code == agentproto.CodeSuccess {
		f := e.facts(&op.Spec, &report)
		main, s := proc.Identity(report.Outcome.Main), e.snapshotOf(op.Spec.Key)
		if f.running && !main.IsZero() && s.busy == "" { // otherwise the cached answers are reported
			f.version, f.health = e.inquiries.both(ctx, main, &op.Spec, f.version, f.health)
		}
		result.Status = e.snapshotOf(op.Spec.Key).status(f)
		result.FinishedAt = time.Now().UTC()
	}
	return result, true
}

// probe returns the work of a search that uses the engine's knowledge of the spec's key.
func (e inspector) probe(spec *agentproto.Spec) *procop.Probe {
	var known procop.Knowledge
	if s := e.snapshotOf(spec.Key); !s.specStored || procspec.SameProgram(&s.spec, spec) {
		known = s.known
	}
	return e.host.Probe(spec, known)
}

// statusOf returns the status for an operation that is rejected; nil if that panics.
func (e inspector) statusOf(ctx context.Context, op journal.Op) (st *agentproto.Status) {
	defer e.rescue(op.Spec.Key, "refusal", nil)
	report := e.probe(&op.Spec).Run(ctx)
	return e.snapshotOf(op.Spec.Key).status(e.facts(&op.Spec, &report))
}
