package operate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
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
	v := refused("queue full: too many operations wait for this process")
	if effect.Why == supervise.Superseded {
		v = refused("superseded by a later command for this process")
	}
	a.engine.turnAway(ctx, order.op, v)
}

// keep makes the spec of an operation that reached its goal the process's own.
func (a *actor) keep(id string, done *ended) {
	spec := a.ops[id].op.Spec
	if a.state.Kept && !sameProgram(&a.spec, &spec) {
		a.aliases = done.aliases
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
func (a *actor) know(spec *agentproto.Spec) knowledge {
	if a.state.Kept && !sameProgram(&a.spec, spec) {
		return knowledge{}
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.seenAlive()
	}
	return a.known()
}

func (a *actor) known() knowledge {
	return knowledge{
		main: proc.Identity(a.state.Main), last: a.last, mates: a.instances, aliases: a.aliases,
		watched: a.watches(a.state.Main), aliveAt: a.aliveAt,
	}
}

func (a *actor) autoStart(ctx context.Context) {
	if !a.engine.drain.begin() {
		return
	}
	way, cancel := context.WithCancel(ctx)
	a.giveWay = cancel
	r := a.newRun(journal.Op{Action: agentproto.ActionStart, Spec: a.spec})
	if a.dueAt.IsZero() {
		a.dueAt = time.Now()
	}
	r.auto, r.left, r.due = true, a.starting, a.dueAt
	r.started = func(exec journal.Exec) bool {
		msg := autoSpawned{exec: exec, saved: make(chan struct{})}
		a.mailbox.put(msg)
		select {
		case <-msg.saved:
			return true
		case <-ctx.Done():
			return false
		}
	}
	a.engine.work.Go(func() { a.mailbox.put(r.autoStart(ctx, way)) })
}

func (a *actor) newRun(op journal.Op) *run {
	return &run{engine: a.engine, op: op, name: actionNames[op.Action], known: a.know(&op.Spec)}
}

// leftStart is the wait for a start command that was left under way; nil if
// there is none.
func (a *actor) leftStart() *run {
	if a.starting.At.IsZero() {
		return nil
	}
	r := a.newRun(journal.Op{Action: agentproto.ActionStart, Spec: a.spec})
	r.auto, r.left = true, a.starting
	return r
}

// begin carries out an operation beside the goroutine.
func (a *actor) begin(ctx context.Context, o order) {
	if !a.engine.drain.begin() {
		return // it stays open in the journal
	}
	r := a.newRun(o.op)
	other := a.state.Kept && !sameProgram(&a.spec, &o.op.Spec)
	left := a.leftStart()
	a.engine.work.Go(func() {
		if left != nil && !left.awaitAlone(ctx) {
			a.engine.drain.end()
			return
		}
		done, ok := r.carryOut(ctx, o)
		if !ok {
			a.engine.drain.end()
			return
		}
		done.outcome.Other, done.waited = other, left != nil
		a.mailbox.put(done)
	})
}

// look looks at the process beside the goroutine, since a look may take
// seconds. One at a time is enough: a request meanwhile makes another follow.
func (a *actor) look(ctx context.Context, gen int) {
	a.lookGen = gen
	if a.looking {
		return
	}
	a.looking = true
	r := a.newRun(journal.Op{Spec: a.spec})
	r.op.Spec.Key = a.key
	a.engine.work.Go(func() {
		event := supervise.Observed{Gen: gen, Sight: supervise.Doubt}
		defer a.engine.rescue(a.key, "look", func(cause string) {
			a.mailbox.put(looked{event: event})
			a.fault(cause)
		})
		if r.look(ctx); r.contested(a.engine.owners.rival(r.main(), a.key, r.proven())) == nil {
			event.Main = supervise.Identity(r.main())
		}
		event.Sight = r.sight()
		a.mailbox.put(looked{event: event, aliases: r.known.aliases, instances: r.instances()})
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
