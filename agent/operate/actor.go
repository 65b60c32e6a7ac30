package operate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// actor owns the state of one process key. It has a goroutine only while messages wait. Only
// that goroutine uses the fields below the snapshot.
type actor struct {
	engine   *Engine
	key      string
	turn     int // turn of the sweep that queries the process; see turnOf
	log      logrus.FieldLogger
	mailbox  *mailbox
	snapshot atomic.Pointer[snapshot]

	state       supervise.State
	running     context.CancelCauseFunc // ends the work of the latest operation
	ops         map[string]order        // submitted operations that are not completed, by opID
	memory      memory                  // persisted data of the process
	watch       watch                   // observation of the process
	auto        automatic               // automatic starts and terminations
	health      health
	schedule    schedule
	frozenUntil time.Time // end of the freeze by the server's time; zero = not frozen
	panics      int       // panics in the work on this key; see quarantine
}

// order, a message, is an operation to carry out and the progress of an earlier agent process
// on it.
type order struct {
	op          journal.Op
	interrupted *journal.Exec // recorded execution; nil = the operation had not begun
}

// Messages in addition to the events of package supervise.
type (
	// completed reports the end of an operation.
	completed struct {
		id     string
		report procop.Report
		result agentproto.Result
		facts  facts
		waited bool // the operation waited for a start command that was left running
	}

	// forgetDown requests to forget a stopped process, because too many are remembered.
	forgetDown struct{}

	// preemption requests to terminate the command of an operation that has begun.
	preemption struct {
		id    string // operation to end; others are not affected
		cause error  // why
	}
)

func newActor(e *Engine, key string) *actor {
	a := &actor{
		engine: e, key: key, turn: turnOf(key), ops: map[string]order{},
		log:   e.cfg.Log.WithField("process", key),
		state: supervise.State{Saved: supervise.Saved{Desired: supervise.None, Phase: supervise.Unknown}},
		auto:  automatic{yield: func() {}},
	}
	a.mailbox = newMailbox(func() { e.loops.Go(func() { a.work(e.life) }) })
	a.watch = watch{watcher: e.watcher, mailbox: a.mailbox, log: a.log, instances: map[proc.Identity]func(){}}
	a.publish()
	a.mailbox.put(freezesChanged{})
	return a
}

// work handles messages until none waits, the engine ends or the actor is retired.
func (a *actor) work(ctx context.Context) {
	for messages := a.mailbox.take(); len(messages) > 0; messages = a.mailbox.take() {
		for _, msg := range messages {
			if ctx.Err() != nil {
				return
			}
			a.guarded(func() { a.handle(ctx, msg) })
		}
		if a.forgettable() && a.engine.retire(a) {
			a.stop()
			return
		}
	}
}

// stop stops all senders of messages. It must not run concurrently with work.
func (a *actor) stop() {
	a.mailbox.close()
	a.auto.disarm()
	a.schedule.drop()
	a.watch.stop()
	a.watch.setInstances(nil)
}

// forgettable reports whether the actor has no state that the next operation needs.
func (a *actor) forgettable() bool {
	return a.state.Work == supervise.Idle && len(a.ops) == 0 && !a.watch.searching &&
		a.state.Desired != supervise.Up && a.state.Main == (supervise.Identity{}) && a.memory.Last.IsZero()
}

// guarded calls do and keeps a panic in it from ending the agent.
func (a *actor) guarded(do func()) {
	defer a.engine.rescue(a.key, "process handling", nil)
	do()
}

func (a *actor) handle(ctx context.Context, msg message) {
	if a.quarantined() {
		quarantine{a}.handle(ctx, msg)
		return
	}
	switch msg := msg.(type) {
	case order:
		op := &msg.op
		id := opID(op.ID)
		a.ops[id] = msg
		a.preemptFor(op)
		a.step(ctx, supervise.Submitted{Op: supervise.Op{
			ID: id, Action: supervise.Action(op.Action), Fence: op.Fence, Item: op.Item, Policy: policyOf(&op.Spec, a.engine.cfg.Timing),
		}}, nil)
	case completed:
		a.completed(ctx, msg)
	case searched:
		observer{a}.searched(ctx, msg)
	case forgetDown:
		a.forgetDown()
	case preemption:
		a.preempt(msg)
	case healthChecked:
		observer{a}.healthChecked(ctx, msg)
	case startSpawned:
		automation{a}.startSpawned(msg)
	case autoStarted:
		automation{a}.autoStarted(ctx, msg)
	case terminateRequest:
		automation{a}.terminateRequested(ctx, msg)
	case terminated:
		automation{a}.terminated(ctx, msg)
	case freezesChanged:
		a.refreeze(ctx)
	case pidFileChecked:
		observer{a}.readPidFile(ctx, msg)
	case supervise.PidFileConflict:
		a.watch.checkingPidFile = false
		a.step(ctx, msg, nil)
	case panicked:
		quarantine{a}.countPanic(ctx, msg)
	case instanceDied:
		a.watch.instance = msg.death
		observer{a}.recount(ctx)
	case scheduleDue:
		scheduler{a}.tick(ctx)
	case supervise.Swept:
		scheduler{a}.tick(ctx)
		observer{a}.sweep(ctx)
	case died:
		observer{a}.died(ctx, msg)
	case supervise.Event:
		a.step(ctx, msg, nil)
	}
}

func opID(id journal.ID) string { return fmt.Sprintf("%s/%d", id.Task, id.Item) }

func (a *actor) completed(ctx context.Context, msg completed) {
	r := &msg.report
	if msg.waited {
		a.memory.Starting = journal.Exec{}
	}
	if !r.Outcome.Other {
		a.memory.learn(r.Aliases)
	}
	a.watch.pidFileRead(r.PidFileWritten)
	if !a.state.SpecStored {
		a.memory.Spec = namesOnly(a.ops[msg.id].op.Spec)
	}
	effects{a}.confirm(ctx, &msg)
	a.step(ctx, supervise.Finished{ID: msg.id, Outcome: r.Outcome}, &msg)
	if !r.Outcome.Other && msg.facts.shown {
		observer{a}.countInstances(r.Instances)
	}
}

// step passes an event to the state machine and performs the effects. done is the operation
// that the event completes; nil = none. A panic in one effect must not prevent the others,
// since the machine relies on all of them.
func (a *actor) step(ctx context.Context, event supervise.Event, done *completed) {
	was := a.state
	state, todo := supervise.Step(a.state, a.engine.clock.now(), event)
	a.state = state
	a.stateChanged(was)
	for _, effect := range todo {
		a.guarded(func() { effects{a}.perform(ctx, effect, done) })
		a.publish()
	}
	a.publish()
	reporter{a}.logChange(was)
}

// stateChanged updates the fields that depend on the state. was is the state before the step.
func (a *actor) stateChanged(was supervise.State) {
	if a.state.Main != was.Main {
		if was.Main != (supervise.Identity{}) {
			a.memory.Last = proc.Identity(was.Main)
			if a.watch.watches(a.memory.Last) {
				a.watch.recordAlive() // it ran until now
			}
			a.recordExit(a.memory.Last, was)
		}
		a.settle()
	}
	up := a.state.Desired == supervise.Up
	if up != (was.Desired == supervise.Up) {
		a.memory.RegisteredAt = time.Time{}
		if up {
			a.memory.RegisteredAt = time.Now().UTC()
		} else {
			a.schedule.drop()
		}
	}
	if down := a.state.Desired == supervise.Down; down != (was.Desired == supervise.Down) {
		a.memory.StoppedAt = time.Time{}
		if down {
			a.memory.StoppedAt = time.Now().UTC()
		}
		a.engine.countDown(a.key, a.memory.StoppedAt)
	}
	if a.state.Phase != supervise.Backoff && a.state.Phase != supervise.Fatal {
		a.auto.retryAt = time.Time{}
	}
	if a.state.Phase == supervise.Running || !up {
		a.auto.dueAt = time.Time{}
	}
}

func (a *actor) settle() {
	if a.state.Main != (supervise.Identity{}) {
		a.watch.recordAlive()
	}
	a.claim()
}

// claim claims the main process for the key, or releases the key's claim if there is none.
// The operation that found the process may have claimed it already.
func (a *actor) claim() {
	main := proc.Identity(a.state.Main)
	switch {
	case main.IsZero():
		a.engine.host.Claims.Release(a.key)
	case a.state.SpecStored:
		a.engine.host.Claims.Claim(main, a.key, a.memory.Spec.PidPath != "")
	}
}

// recordExit records the end of a process of the key: time, exit status and the operation
// or termination that ended it, as far as these are known.
func (a *actor) recordExit(main proc.Identity, was supervise.State) {
	if proc.Alive(main) {
		return // a successor has replaced it as the main process
	}
	exit := &agentproto.LastExit{At: time.Now().UTC()}
	if death := &a.watch.death; death.Identity == main {
		exit.At = death.At.UTC()
		exit.Known, exit.Code, exit.Signal = death.Known, death.Code, death.SignalName()
	}
	switch was.Work {
	case supervise.Operating:
		exit.Why = procspec.ActionName(string(was.Op.Action))
	case supervise.Terminating:
		exit.Why = string(a.auto.why)
	case supervise.Idle, supervise.AutoStarting:
		if a.engine.oom.Killed(main) {
			exit.Known, exit.Signal, exit.Why = true, "SIGKILL", "out of memory"
		}
	}
	a.memory.LastExit, a.memory.exited = exit, main
}
