package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// effects performs the effects of the state machine.
type effects struct{ *actor }

func (a effects) perform(ctx context.Context, effect supervise.Effect, done *completed) {
	switch effect := effect.(type) {
	case supervise.Perform:
		a.publish() // before the operation claims its pid file
		a.begin(ctx, a.ops[effect.ID])
	case supervise.Refuse:
		a.refuse(ctx, effect)
	case supervise.End:
		a.end(ctx, effect.ID, done)
	case supervise.StoreSpec:
		a.storeSpec(effect.ID, done)
	case supervise.Save:
		a.save()
	case supervise.AutoStart:
		automation(a).autoStart(ctx)
	case supervise.Yield:
		a.auto.yield()
	case supervise.Terminate:
		automation(a).terminate(ctx, effect)
	case supervise.Emit:
		reporter(a).emitNotice(effect)
	case supervise.Search:
		observer(a).search(ctx, effect.Gen)
	case supervise.Watch:
		a.watch.setMain(proc.Identity(effect.Main))
	case supervise.Arm:
		a.auto.arm(effect, a.mailbox)
	}
}

func (a effects) refuse(ctx context.Context, effect supervise.Refuse) {
	order := a.ops[effect.ID]
	delete(a.ops, effect.ID)
	c := procop.Refused("queue full: too many operations wait for this process")
	if effect.Why == supervise.Superseded {
		c = procop.Superseded()
	}
	a.engine.reject(ctx, order.op, c)
}

// storeSpec stores the spec of a successful operation as the spec of the process.
func (a effects) storeSpec(id string, done *completed) {
	m, spec := &a.memory, a.ops[id].op.Spec
	if !procspec.SameProgram(&m.Spec, &spec) {
		m.Aliases = done.report.Aliases
		if proc.Alive(m.Last) && m.Last != proc.Identity(a.state.Main) {
			done.result.Warnings = append(done.result.Warnings,
				fmt.Sprintf("pid %d of the previous spec still runs and is no longer supervised", m.Last.PID))
		}
	}
	was := m.Spec
	m.Spec = spec
	a.mailbox.put(freezesChanged{}) // the new spec may have another namespace
	scheduler(a).plan(&was)
	if done.result.Code == agentproto.CodeSuccess && a.ops[id].op.Action != agentproto.ActionSupervise {
		m.StartedAt = time.Now().UTC()
	}
}

// end adds the state of the process to the result and persists it. It retries until the
// result is durable or the engine ends: no later change may become known before the result.
func (a effects) end(ctx context.Context, id string, done *completed) {
	defer a.engine.drain.end()
	a.claim() // again: the operation may have claimed the process of another program
	order := a.ops[id]
	delete(a.ops, id)
	result := done.result
	if done.facts.shown {
		a.publish()
		result.Status = a.snapshot.Load().status(done.facts)
	}
	a.engine.finish(ctx, order.op, result)
	a.save() // again: the journal may have become writable only now
}

// begin carries out an operation in a separate goroutine.
func (a effects) begin(ctx context.Context, o order) {
	e := a.engine
	if !e.drain.begin() {
		return // the operation remains open in the journal
	}
	other := a.state.SpecStored && !procspec.SameProgram(&a.memory.Spec, &o.op.Spec)
	var former *procop.Former
	if other && (o.op.Action == agentproto.ActionStart || o.op.Action == agentproto.ActionRestart) {
		former = &procop.Former{Spec: a.memory.Spec, Known: a.known()}
	}
	work := e.host.Operation(o.op, a.know(&o.op.Spec), former, o.interrupted)
	var left *procop.AutoStart // waits for a start command that was left running; nil = none
	if !a.memory.Starting.At.IsZero() {
		left = e.host.AutoStart(&a.memory.Spec, a.know(&a.memory.Spec), a.memory.Starting, nil)
	}
	running, end := context.WithCancelCause(ctx)
	a.running = end
	e.work.Go(func() {
		defer end(nil)
		if left != nil && !left.AwaitLeft(ctx) {
			e.drain.end()
			return
		}
		done, ok := a.carryOut(ctx, running, o.op, work)
		if !ok {
			e.drain.end()
			return
		}
		done.report.Outcome.Other, done.waited = other, left != nil
		a.mailbox.put(done)
	})
}

// carryOut runs an operation to its end, or until running ends. It reports false if the
// engine ended first; the operation then remains open.
func (a effects) carryOut(ctx, running context.Context, op journal.Op, work *procop.Operation) (completed, bool) {
	started := time.Now().UTC()
	report := a.attempt(ctx, running, op, work)
	if report.Class == supervise.Interrupted {
		return completed{}, false
	}
	done := completed{id: opID(op.ID), report: report, result: a.engine.result(op, report.Completion, started)}
	if report.Code != agentproto.CodeAgentAbnormal {
		done.facts = inspector{a.engine}.facts(&op.Spec, &report)
	}
	done.result.Warnings = report.Warnings
	return done, true
}

// attempt runs an operation. A panic in it must not end the agent.
func (a effects) attempt(ctx, running context.Context, op journal.Op, work *procop.Operation) (report procop.Report) {
	defer a.engine.rescue(a.key, "operation", func(cause string) { report = work.Failed(cause) })
	if err := a.engine.cfg.Ledger.Begin(op.ID); err != nil {
		return work.Dropped(err)
	}
	report = work.Run(running)
	if report.Class == supervise.Interrupted && ctx.Err() == nil {
		report = work.Preempted(ctx, context.Cause(running).Error())
	}
	return report
}

// know returns the knowledge that work with the given spec may use: none if the stored spec
// describes another program.
func (a *actor) know(spec *agentproto.Spec) procop.Knowledge {
	if a.state.SpecStored && !procspec.SameProgram(&a.memory.Spec, spec) {
		return procop.Knowledge{}
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.watch.recordAlive()
	}
	return a.known()
}

func (a *actor) known() procop.Knowledge {
	main := proc.Identity(a.state.Main)
	return procop.Knowledge{
		Main: main, Last: a.memory.Last, Instances: a.memory.Instances, Aliases: a.memory.Aliases,
		Watched: a.watch.watches(main), AliveAt: a.watch.aliveAt,
	}
}

// probe returns the work of a search for the followed process.
func (a *actor) probe() *procop.Probe {
	spec := agentproto.Spec{Key: a.key}
	if a.state.SpecStored {
		spec = a.memory.Spec
	}
	return a.engine.host.Probe(&spec, a.know(&a.memory.Spec))
}
