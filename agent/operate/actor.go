package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// actor is one process key. Its goroutine, loop, is the only one that touches
// its fields, except for the mailbox and the snapshot.
type actor struct {
	engine  *Engine
	key     string
	log     logrus.FieldLogger
	mailbox *mailbox

	state   supervise.State
	ops     map[string]order // submitted and not over
	spec    agentproto.Spec  // kept; meaningful if state.Kept
	aliases []string
	last    proc.Identity // the process before state.Main
	saved   json.RawMessage

	starting journal.Exec // command of the automatic start under way; zero = none

	registeredAt time.Time
	startedAt    time.Time
	retryAt      time.Time

	timer   *time.Timer
	unwatch func()
	giveWay context.CancelFunc // of the automatic start under way
	looking bool               // a look is under way
	lookGen int                // the generation that asked for a look last

	snapshot atomic.Pointer[snapshot]
}

// order is an operation with what an earlier agent process had done of it.
type order struct {
	op          journal.Op
	interrupted *journal.Exec // nil = not begun
}

// Messages besides supervise events.
type (
	submission struct{ order order }

	// ended is an operation whose result is known.
	ended struct {
		id      string
		outcome supervise.Outcome
		result  agentproto.Result
		facts   facts
		aliases []string
	}

	// looked is the end of a look for a generation of the machine.
	looked struct {
		event   supervise.Observed
		aliases []string
	}

	// autoSpawned is the command of an automatic start.
	autoSpawned struct{ exec journal.Exec }

	// autoStarted is the end of an automatic start.
	autoStarted struct {
		outcome supervise.Outcome
		aliases []string
		ran     bool   // a command was run
		trouble string // why the process is not there
	}
)

func newActor(e *Engine, key string) *actor {
	a := &actor{
		engine: e, key: key, mailbox: newMailbox(), ops: map[string]order{},
		log:   e.cfg.Log.WithField("process", key),
		state: supervise.State{Desired: supervise.None, Phase: supervise.Unknown},
	}
	a.publish()
	return a
}

// loop handles messages until the engine ends or the key is forgotten.
func (a *actor) loop(ctx context.Context) {
	defer a.disarm()
	defer a.stopWatching()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.mailbox.arrived:
		}
		for _, msg := range a.mailbox.take() {
			a.guarded(ctx, msg)
		}
		if a.forgettable() && a.engine.retire(a) {
			return
		}
	}
}

// forgettable reports whether the next operation would find nothing here that
// it could not find by itself.
func (a *actor) forgettable() bool {
	return a.state.Work == supervise.Idle && len(a.ops) == 0 && !a.looking &&
		a.state.Desired != supervise.Up && a.state.Main == (supervise.Identity{}) && a.last.IsZero()
}

// guarded keeps a fault in the handling of one key from ending the agent.
func (a *actor) guarded(ctx context.Context, msg message) {
	defer func() {
		if cause := recover(); cause != nil {
			a.log.WithField("error", fmt.Sprint(cause)).WithField("stack", string(debug.Stack())).Error("process handling panicked")
		}
	}()
	a.handle(ctx, msg)
}

func (a *actor) handle(ctx context.Context, msg message) {
	switch msg := msg.(type) {
	case submission:
		a.ops[opID(msg.order.op.ID)] = msg.order
		a.step(ctx, supervise.Submitted{Op: a.machineOp(msg.order.op)}, nil)
	case ended:
		a.learn(msg.aliases)
		a.step(ctx, supervise.Finished{ID: msg.id, Outcome: msg.outcome}, &msg)
	case looked:
		a.looking = false
		a.learn(msg.aliases)
		a.step(ctx, msg.event, nil)
		if msg.event.Gen != a.lookGen {
			a.look(ctx, a.lookGen)
		}
	case autoSpawned:
		a.starting = msg.exec
		a.trySave()
	case autoStarted:
		a.autoStarted(ctx, msg)
	case supervise.Event:
		a.step(ctx, msg, nil)
	}
}

func (a *actor) autoStarted(ctx context.Context, msg autoStarted) {
	a.giveWay()
	defer a.engine.drain.end()
	a.starting = journal.Exec{}
	a.learn(msg.aliases)
	entry := a.log.WithField("pid", msg.outcome.Main.PID)
	switch {
	case msg.outcome.Sight == supervise.Alive && msg.ran:
		a.startedAt = time.Now().UTC()
		entry.Info("process started again")
	case msg.outcome.Sight == supervise.Alive:
		entry.Info("process adopted")
	case msg.trouble != "":
		a.log.WithField("reason", msg.trouble).Warn("automatic start failed")
	}
	a.step(ctx, supervise.AutoStarted{Outcome: msg.outcome}, nil)
}

func (a *actor) machineOp(op journal.Op) supervise.Op {
	action := supervise.Action(op.Action)
	return supervise.Op{
		ID: opID(op.ID), Action: action, Fence: op.Fence, Item: op.Item,
		Policy: policyOf(&op.Spec, a.engine.cfg.Timing),
	}
}

func opID(id journal.ID) string { return fmt.Sprintf("%s/%d", id.Task, id.Item) }

// learn keeps names under which the program was seen.
func (a *actor) learn(aliases []string) {
	if len(aliases) > 0 {
		a.aliases = aliases
	}
}

// step asks the machine and does what it says. done is the operation that the
// event ends, if it does.
func (a *actor) step(ctx context.Context, event supervise.Event, done *ended) {
	was := a.state
	state, effects := supervise.Step(a.state, event)
	a.state = state
	a.note(was)
	for _, effect := range effects {
		a.perform(ctx, effect, done)
		a.publish()
	}
	a.publish()
}

// note follows up on what the step changed.
func (a *actor) note(was supervise.State) {
	if a.state.Main != was.Main {
		if was.Main != (supervise.Identity{}) {
			a.last = proc.Identity(was.Main)
		}
		a.engine.owners.settle(proc.Identity(a.state.Main), a.key)
	}
	if up := a.state.Desired == supervise.Up; up != (was.Desired == supervise.Up) {
		a.registeredAt = time.Time{}
		if up {
			a.registeredAt = time.Now().UTC()
		}
		a.engine.countSupervised(up)
	}
	if a.state.Phase != supervise.Backoff {
		a.retryAt = time.Time{}
	}
	if a.state.Phase != was.Phase {
		a.logPhase(was.Phase)
	}
}

func (a *actor) logPhase(was supervise.Phase) {
	entry := a.log.WithFields(logrus.Fields{
		"phase": a.state.Phase, "before": was, "pid": a.state.Main.PID, "failures": a.state.Failures,
	})
	switch {
	case a.state.Phase == supervise.Fatal:
		entry.Error("process is given up")
	case a.state.Phase == supervise.Exited, a.state.Phase == supervise.Uncertain:
		entry.Warn("process changed")
	default:
		entry.Debug("process changed")
	}
}

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
		a.aliases = nil
		if proc.Alive(a.last) && a.last != proc.Identity(a.state.Main) {
			done.result.Warnings = append(done.result.Warnings,
				fmt.Sprintf("pid %d of the spec before still runs and is not supervised any more", a.last.PID))
		}
	}
	a.spec = spec
	if done.result.Code == agentproto.CodeSuccess && a.ops[id].op.Action != agentproto.ActionSupervise {
		a.startedAt = time.Now().UTC()
	}
}

// end completes the result with what the machine decided and makes it durable.
// It does not return before that has worked, since whatever comes next must
// not be known before it; only the end of the engine ends the attempts.
func (a *actor) end(ctx context.Context, id string, done *ended) {
	order := a.ops[id]
	delete(a.ops, id)
	result := done.result
	if done.facts.shown {
		a.publish()
		result.Status = a.snapshot.Load().status(done.facts)
	}
	a.engine.finish(ctx, order.op, result)
	a.trySave() // again, in case the journal came back only now
	a.engine.drain.end()
}

// trySave goes on without the record when it cannot be written: supervision
// must not stop because a disk is full, and the next change tries again.
func (a *actor) trySave() {
	if err := a.save(); err != nil {
		a.log.WithError(err).Error("process record was not saved")
	}
}

// save writes the record if it changed.
func (a *actor) save() error {
	text, err := a.encode()
	if err != nil || bytes.Equal(text, a.saved) {
		return err
	}
	if err := a.engine.cfg.Ledger.SaveProcess(a.key, text); err != nil {
		return err
	}
	a.saved = text
	return nil
}

// know is what work on the given spec may rely on. What is known of another
// program of the same key says nothing about this one.
func (a *actor) know(spec *agentproto.Spec) knowledge {
	if a.state.Kept && !sameProgram(&a.spec, spec) {
		return knowledge{}
	}
	return knowledge{main: proc.Identity(a.state.Main), last: a.last, aliases: a.aliases}
}

func (a *actor) autoStart(ctx context.Context) {
	if !a.engine.drain.begin() {
		return
	}
	way, cancel := context.WithCancel(ctx)
	a.giveWay = cancel
	r := a.newRun(journal.Op{Action: agentproto.ActionStart, Spec: a.spec})
	r.auto, r.left = true, a.starting
	r.started = func(exec journal.Exec) { a.mailbox.put(autoSpawned{exec: exec}) }
	a.engine.work.Go(func() { a.mailbox.put(r.autoStart(ctx, way)) })
}

func (a *actor) newRun(op journal.Op) *run {
	return &run{engine: a.engine, op: op, name: actionNames[op.Action], known: a.know(&op.Spec)}
}

// begin carries out an operation beside the goroutine.
func (a *actor) begin(ctx context.Context, o order) {
	if !a.engine.drain.begin() {
		return // it stays open in the journal
	}
	r := a.newRun(o.op)
	other := a.state.Kept && !sameProgram(&a.spec, &o.op.Spec)
	a.engine.work.Go(func() {
		done, ok := r.carryOut(ctx, o)
		if !ok {
			a.engine.drain.end()
			return
		}
		done.outcome.Other = other
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
	// Nearly every look ends here, for the price of reading one small file.
	if main := a.state.Main; proc.Alive(proc.Identity(main)) {
		a.mailbox.put(looked{event: supervise.Observed{Gen: gen, Sight: supervise.Alive, Main: main}})
		return
	}
	r := a.newRun(journal.Op{Spec: a.spec})
	r.op.Spec.Key = a.key
	a.engine.work.Go(func() {
		event := supervise.Observed{Gen: gen}
		if r.look(ctx); r.contested(a.engine.owners.of(r.main())) == nil {
			event.Main = supervise.Identity(r.main())
		}
		event.Sight = r.sight()
		a.mailbox.put(looked{event: event, aliases: r.known.aliases})
	})
}

func (a *actor) watch(id proc.Identity) {
	a.stopWatching()
	if id.IsZero() {
		return
	}
	stop, err := a.engine.watcher.Add(id, func(id proc.Identity) {
		a.mailbox.put(supervise.Died{Main: supervise.Identity(id)})
	})
	switch {
	case errors.Is(err, proc.ErrGone):
		a.mailbox.put(supervise.Died{Main: supervise.Identity(id)})
	case err != nil:
		a.log.WithError(err).Warn("process is not watched, only looked at from time to time")
	default:
		a.unwatch = stop
	}
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
		delay = supervise.Jitter(delay, rand.Float64()) //nolint:gosec // spreads load, guards nothing
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
