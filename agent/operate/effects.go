package operate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

func (a *actor) perform(ctx context.Context, effect supervise.Effect, done *ended) {
	switch effect := effect.(type) {
	case supervise.Perform:
		a.begin(ctx, a.ops[effect.Op.ID])
	case supervise.Refuse:
		a.refuse(ctx, effect)
	case supervise.End:
		a.end(ctx, effect.ID, done)
	case supervise.Keep:
		a.keep(effect.ID, done)
	case supervise.Save:
		a.trySave()
	case supervise.AutoStart:
		a.autoStart(ctx)
	case supervise.GiveWay:
		a.giveWay()
	case supervise.TakeDown:
		a.takeDown(ctx, effect)
	case supervise.Tell:
		a.tell(effect)
	case supervise.Look:
		a.look(ctx, effect.Gen)
	case supervise.Watch:
		a.watch(proc.Identity(effect.Main))
	case supervise.Arm:
		a.arm(effect)
	}
}

func (a *actor) refuse(ctx context.Context, effect supervise.Refuse) {
	order := a.ops[effect.ID]
	delete(a.ops, effect.ID)
	c := procop.Refused("queue full: too many operations wait for this process")
	if effect.Why == supervise.Superseded {
		c = procop.Refused("superseded by a later command for this process")
	}
	a.engine.turnAway(ctx, order.op, c)
}

// keep makes the spec of an operation that reached its goal the process's own.
func (a *actor) keep(id string, done *ended) {
	spec := a.ops[id].op.Spec
	if a.state.Kept && !procspec.SameProgram(&a.spec, &spec) {
		a.aliases = done.report.Aliases
		if proc.Alive(a.last) && a.last != proc.Identity(a.state.Main) {
			done.result.Warnings = append(done.result.Warnings,
				fmt.Sprintf("pid %d of the spec before still runs and is not supervised any more", a.last.PID))
		}
	}
	was := a.spec
	a.spec = spec
	a.mailbox.put(freezesChanged{}) // its namespace may be another one
	a.plan(&was)
	if done.result.Code == agentproto.CodeSuccess && a.ops[id].op.Action != agentproto.ActionSupervise {
		a.startedAt = time.Now().UTC()
	}
}

// end completes the result with what the machine decided and makes it durable.
// It does not return before that has worked, since whatever comes next must
// not be known before it; only the end of the engine ends the attempts.
func (a *actor) end(ctx context.Context, id string, done *ended) {
	defer a.engine.drain.end()
	a.claim() // the operation may have taken another program's process
	order := a.ops[id]
	delete(a.ops, id)
	result := done.result
	if done.facts.shown {
		a.publish()
		result.Status = a.snapshot.Load().status(done.facts)
	}
	a.engine.finish(ctx, order.op, result)
	a.trySave() // again, in case the journal came back only now
}

// trySave goes on without the record when it cannot be written: supervision
// must not stop because a disk is full, and the next change tries again.
func (a *actor) trySave() {
	if err := a.save(); err != nil {
		a.log.WithError(err).Error("process record not saved")
	}
}

// save writes the record if it changed.
func (a *actor) save() error {
	text, err := a.encode()
	digest := digestOf(text)
	if err != nil || digest == a.saved {
		return err
	}
	if err := a.engine.cfg.Ledger.SaveProcess(a.key, text); err != nil {
		return err
	}
	a.saved = digest
	return nil
}

// know is what work on the given spec may rely on. What is known of another
// program of the same key says nothing about this one.
func (a *actor) know(spec *agentproto.Spec) procop.Knowledge {
	if a.state.Kept && !procspec.SameProgram(&a.spec, spec) {
		return procop.Knowledge{}
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.seenAlive()
	}
	return a.known()
}

func (a *actor) known() procop.Knowledge {
	return procop.Knowledge{
		Main: proc.Identity(a.state.Main), Last: a.last, Instances: a.instances, Aliases: a.aliases,
		Watched: a.watches(a.state.Main), AliveAt: a.aliveAt,
	}
}

func (a *actor) autoStart(ctx context.Context) {
	if !a.engine.drain.begin() {
		return
	}
	yield, cancel := context.WithCancel(ctx)
	a.giveWay = cancel
	if a.dueAt.IsZero() {
		a.dueAt = time.Now()
	}
	limiter, due := a.engine.gate, a.dueAt
	if procspec.HasSchedule(&a.spec) {
		limiter = a.engine.runs
	}
	work := a.engine.host.AutoStart(&a.spec, a.know(&a.spec), a.starting, func(exec journal.Exec) bool {
		msg := autoSpawned{exec: exec, saved: make(chan struct{})}
		a.mailbox.put(msg)
		select {
		case <-msg.saved:
			return true
		case <-ctx.Done():
			return false
		}
	})
	a.engine.work.Go(func() {
		var msg autoStarted
		defer func() { a.mailbox.put(msg) }()
		defer a.engine.rescue(a.key, "automatic start", func(cause string) {
			msg = notStarted(supervise.Failed)
			a.fault(cause)
		})
		msg = notStarted(supervise.Interrupted)
		if !limiter.enter(yield, due) {
			return
		}
		spawned := false
		defer func() { limiter.leave(spawned) }()
		msg.report = work.Run(ctx, yield)
		spawned = msg.report.Spawned
	})
}

func notStarted(class supervise.Class) autoStarted {
	return autoStarted{procop.AutoStartReport{Report: procop.Report{Outcome: supervise.Outcome{Class: class, Sight: supervise.Doubt}}}}
}

// leftStart is the wait for a start command that was left under way; nil if
// there is none.
func (a *actor) leftStart() *procop.AutoStart {
	if a.starting.At.IsZero() {
		return nil
	}
	return a.engine.host.AutoStart(&a.spec, a.know(&a.spec), a.starting, nil)
}

// begin carries out an operation beside the goroutine.
func (a *actor) begin(ctx context.Context, o order) {
	if !a.engine.drain.begin() {
		return // it stays open in the journal
	}
	work := a.engine.host.Operation(o.op, a.know(&o.op.Spec), o.interrupted)
	other := a.state.Kept && !procspec.SameProgram(&a.spec, &o.op.Spec)
	left := a.leftStart()
	a.engine.work.Go(func() {
		if left != nil && !left.AwaitLeft(ctx) {
			a.engine.drain.end()
			return
		}
		done, ok := a.engine.carryOut(ctx, o.op, work)
		if !ok {
			a.engine.drain.end()
			return
		}
		done.report.Outcome.Other, done.waited = other, left != nil
		a.mailbox.put(done)
	})
}

// carryOut runs an operation to its end. It reports false when the engine
// ended first: the operation stays open then.
func (e *Engine) carryOut(ctx context.Context, op journal.Op, work *procop.Operation) (ended, bool) {
	started := time.Now().UTC()
	report := e.attempt(ctx, op.Spec.Key, work)
	if report.Class == supervise.Interrupted {
		return ended{}, false
	}
	done := ended{id: opID(op.ID), report: report, result: e.result(op, report.Completion, started)}
	if report.Code != agentproto.CodeAgentAbnormal {
		done.facts = e.facts(&op.Spec, &report)
	}
	done.result.Warnings = report.Warnings
	return done, true
}

// attempt runs an operation. A panic in it must not end the agent.
func (e *Engine) attempt(ctx context.Context, key string, work *procop.Operation) (report procop.Report) {
	defer e.rescue(key, "operation", func(cause string) {
		report = work.Failed(cause)
		e.fault(key, cause)
	})
	return work.Run(ctx)
}

// probe returns a search for the process that is followed.
func (a *actor) probe() *procop.Probe {
	spec := a.spec
	spec.Key = a.key // nothing else is set if no spec is kept
	return a.engine.host.Probe(&spec, a.know(&a.spec))
}

// look looks at the process beside the goroutine, since a look may take
// seconds. One at a time is enough: a request meanwhile makes another follow.
func (a *actor) look(ctx context.Context, gen int) {
	a.lookGen = gen
	if a.looking {
		return
	}
	a.looking = true
	probe := a.probe()
	a.engine.work.Go(func() {
		event := supervise.Observed{Gen: gen, Sight: supervise.Doubt}
		defer a.engine.rescue(a.key, "look", func(cause string) {
			a.mailbox.put(looked{event: event})
			a.fault(cause)
		})
		report := probe.Observe(ctx)
		event.Main, event.Sight = report.Outcome.Main, report.Outcome.Sight
		a.mailbox.put(looked{event: event, aliases: report.Aliases, instances: report.Instances})
	})
}

func (a *actor) watch(id proc.Identity) {
	a.stopWatching()
	if id.IsZero() {
		return
	}
	stop, err := a.engine.watcher.Add(id, func(death proc.Death) {
		a.mailbox.put(died{death})
	})
	switch {
	case errors.Is(err, proc.ErrGone):
		a.mailbox.put(died{proc.Death{Identity: id, At: time.Now()}})
	case err != nil:
		a.log.WithError(err).Warn("process watch failed, polling instead")
	default:
		a.unwatch = stop
	}
}

// watches reports whether the end of the process would be told at once, and
// was not yet.
func (a *actor) watches(main supervise.Identity) bool {
	return a.unwatch != nil && a.death.Identity != proc.Identity(main)
}

func (a *actor) stopWatching() {
	if a.unwatch != nil {
		a.unwatch()
		a.unwatch = nil
	}
}

func (a *actor) arm(effect supervise.Arm) {
	a.disarm()
	delay := effect.Delay
	if effect.Timer == supervise.RetryTimer {
		delay = max(supervise.Jitter(delay, rand.Float64()), effect.Least)
		a.retryAt = time.Now().Add(delay).UTC()
	}
	a.timer = time.AfterFunc(delay, func() {
		a.mailbox.put(supervise.Fired{Timer: effect.Timer, Gen: effect.Gen})
	})
}

func (a *actor) disarm() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
