package operate

import (
	"context"
	"encoding/json"
	"fmt"
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
	named   names            // by the last operation that ended, if nothing is kept
	aliases []string
	last    proc.Identity // the process before state.Main
	aliveAt uint64        // see knowledge
	saved   json.RawMessage

	starting journal.Exec // command of the automatic start under way; zero = none

	registeredAt time.Time
	startedAt    time.Time
	stoppedAt    time.Time // zero unless wanted down
	retryAt      time.Time
	changedAt    time.Time // see snapshot

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

	// letGo says that there are too many processes that are wanted down, and
	// this one is the one to forget.
	letGo struct{}

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
		log:     e.cfg.Log.WithField("process", key),
		giveWay: func() {},
		state:   supervise.State{Desired: supervise.None, Phase: supervise.Unknown},
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
			a.guarded(func() { a.handle(ctx, msg) })
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
func (a *actor) guarded(do func()) {
	defer func() {
		if cause := recover(); cause != nil {
			a.log.WithField("error", fmt.Sprint(cause)).WithField("stack", string(debug.Stack())).Error("process handling panicked")
		}
	}()
	do()
}

func (a *actor) handle(ctx context.Context, msg message) {
	switch msg := msg.(type) {
	case submission:
		a.ops[opID(msg.order.op.ID)] = msg.order
		a.step(ctx, supervise.Submitted{Op: a.machineOp(msg.order.op)}, nil)
	case ended:
		if !msg.outcome.Other {
			a.learn(msg.aliases)
		}
		a.named = namesOf(a.ops[msg.id].op.Spec)
		a.step(ctx, supervise.Finished{ID: msg.id, Outcome: msg.outcome}, &msg)
	case looked:
		a.looking = false
		a.learn(msg.aliases)
		a.step(ctx, msg.event, nil)
		if msg.event.Gen != a.lookGen {
			a.look(ctx, a.lookGen)
		}
	case letGo:
		a.letGo()
	case autoSpawned:
		a.starting = msg.exec
		a.trySave()
	case autoStarted:
		a.autoStarted(ctx, msg)
	case supervise.Swept:
		// Nearly every sweep ends here, for the price of reading one small file.
		if a.state.Phase != supervise.Running || !proc.Alive(proc.Identity(a.state.Main)) {
			a.step(ctx, msg, nil)
			return
		}
		a.seenAlive()
	case supervise.Died:
		if msg.Main == a.state.Main {
			a.seenAlive() // until just now
		}
		a.step(ctx, msg, nil)
	case supervise.Event:
		a.step(ctx, msg, nil)
	}
}

func (a *actor) autoStarted(ctx context.Context, msg autoStarted) {
	a.giveWay()
	defer a.engine.drain.end()
	a.starting = journal.Exec{}
	a.learn(msg.aliases)
	if msg.ran {
		a.engine.cfg.Restarted()
	}
	if msg.outcome.Sight == supervise.Alive && msg.ran {
		a.startedAt = time.Now().UTC()
	}
	a.step(ctx, supervise.AutoStarted{Outcome: msg.outcome}, nil)
	a.logStart(msg)
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
// event ends, if it does. A fault in one effect must not keep the others, the
// next operation among them, from happening: the machine counts on them.
func (a *actor) step(ctx context.Context, event supervise.Event, done *ended) {
	was := a.state
	state, effects := supervise.Step(a.state, event)
	a.state = state
	a.note(was)
	for _, effect := range effects {
		a.guarded(func() { a.perform(ctx, effect, done) })
		a.publish()
	}
	a.publish()
	a.logChange(was)
}

// seenAlive notes that the process runs now.
func (a *actor) seenAlive() {
	if now, err := proc.NowTicks(); err == nil { // else what was known stands
		a.aliveAt = now
	}
}

// settle tells the other keys whose the process is. The operation that found
// it may have done so already.
func (a *actor) settle() {
	main := proc.Identity(a.state.Main)
	if main.IsZero() {
		a.engine.owners.drop(a.key)
		return
	}
	a.seenAlive()
	if a.state.Kept {
		a.engine.owners.claim(main, a.key, a.spec.PidPath != "")
	}
}

// note follows up on what the step changed.
func (a *actor) note(was supervise.State) {
	if a.state.Main != was.Main {
		if was.Main != (supervise.Identity{}) {
			a.last = proc.Identity(was.Main)
		}
		a.settle()
	}
	if up := a.state.Desired == supervise.Up; up != (was.Desired == supervise.Up) {
		a.registeredAt = time.Time{}
		if up {
			a.registeredAt = time.Now().UTC()
		}
		a.engine.countSupervised(up)
	}
	if down := a.state.Desired == supervise.Down; down != (was.Desired == supervise.Down) {
		a.stoppedAt = time.Time{}
		if down {
			a.stoppedAt = time.Now().UTC()
		}
		a.engine.countDown(a.key, a.stoppedAt)
	}
	if a.state.Phase != supervise.Backoff {
		a.retryAt = time.Time{}
	}
}
