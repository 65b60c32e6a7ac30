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

// actor is one process key. Its goroutine, work, is the only one that touches
// its fields, except for the mailbox and the snapshot; there is one while there
// are messages to handle.
type actor struct {
	engine  *Engine
	key     string
	turn    int // of the sweep; see turnOf
	log     logrus.FieldLogger
	mailbox *mailbox

	state   supervise.State
	ops     map[string]order // submitted and not over
	spec    agentproto.Spec  // kept; meaningful if state.Kept
	named   names            // by the last operation that ended, if nothing is kept
	aliases []string
	vouched string        // the journal's damage after which a command said that it is to run; "" = before any
	last    proc.Identity // the process before state.Main
	aliveAt uint64        // see knowledge
	saved   digest        // of the record in the journal

	starting   journal.Exec // command of the automatic start under way; zero = none
	death      proc.Death   // the latest that was told
	lastExit   *agentproto.LastExit
	takingDown supervise.Why // latest reason
	condemner  func(procop.TerminationEnd)
	trouble    string // of the latest automatic start

	schedule schedule

	instances []proc.Identity          // of several; see gathered
	mates     map[proc.Identity]func() // those of them that are watched, with what ends that
	missing   int                      // of them, as was told

	registeredAt time.Time
	startedAt    time.Time
	stoppedAt    time.Time // zero unless wanted down
	retryAt      time.Time
	dueAt        time.Time // since when an automatic start has been waiting for its turn; zero = none has
	frozenUntil  time.Time // server's time; zero = it is not frozen
	changedAt    time.Time // see snapshot

	pidFileWritten time.Time // when its content was looked at last
	checking       bool      // it is being looked at
	faults         int       // see quarantine
	booted         bool      // what was restored is of an earlier boot

	timer   *time.Timer
	unwatch func()
	giveWay context.CancelFunc // of the automatic start under way
	health  health
	looking bool // a look is under way
	lookGen int  // the generation that asked for a look last

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
		id     string
		report procop.Report
		result agentproto.Result
		facts  facts
		waited bool // for a start command that was under way
	}

	// looked is the end of a look for a generation of the machine.
	looked struct {
		event     supervise.Observed
		aliases   []string
		instances []proc.Identity
	}

	// died is the end of a process that was watched.
	died struct{ death proc.Death }

	// letGo says that there are too many processes that are wanted down, and
	// this one is the one to forget.
	letGo struct{}

	// autoSpawned is the command of an automatic start. saved is closed once
	// the next agent process would know of it, or nobody can tell it.
	autoSpawned struct {
		exec  journal.Exec
		saved chan struct{}
	}

	// autoStarted is the end of an automatic start.
	autoStarted struct{ report procop.AutoStartReport }

	// takenDown is the end of a take-down.
	takenDown struct {
		outcome supervise.Outcome
		end     procop.TerminationEnd
	}
)

func newActor(e *Engine, key string) *actor {
	a := &actor{
		engine: e, key: key, turn: turnOf(key), ops: map[string]order{}, mates: map[proc.Identity]func(){},
		log:     e.cfg.Log.WithField("process", key),
		giveWay: func() {},
		state:   supervise.State{Desired: supervise.None, Phase: supervise.Unknown},
	}
	a.mailbox = newMailbox(func() { e.loops.Go(func() { a.work(e.life) }) })
	a.publish()
	a.mailbox.put(freezesChanged{})
	return a
}

// work handles messages until there are none, the engine ends or the key is
// forgotten.
func (a *actor) work(ctx context.Context) {
	for messages := a.mailbox.take(); len(messages) > 0; messages = a.mailbox.take() {
		for _, msg := range messages {
			if ctx.Err() != nil {
				return
			}
			a.guarded(func() { a.handle(ctx, msg) })
		}
		if a.forgettable() && a.engine.retire(a) {
			a.leave()
			return
		}
	}
}

// leave ends everything that would put a message. The goroutine must have ended.
func (a *actor) leave() {
	a.mailbox.close()
	a.disarm()
	a.schedule.drop()
	a.stopWatching()
	a.stopWatchingMates()
}

// forgettable reports whether the next operation would find nothing here that
// it could not find by itself.
func (a *actor) forgettable() bool {
	return a.state.Work == supervise.Idle && len(a.ops) == 0 && !a.looking &&
		a.state.Desired != supervise.Up && a.state.Main == (supervise.Identity{}) && a.last.IsZero()
}

// guarded keeps a fault in the handling of one key from ending the agent.
func (a *actor) guarded(do func()) {
	defer a.engine.rescue(a.key, "process handling", a.fault)
	do()
}

func (a *actor) handle(ctx context.Context, msg message) {
	if a.quarantined() {
		a.handleQuarantined(ctx, msg)
		return
	}
	switch msg := msg.(type) {
	case submission:
		a.ops[opID(msg.order.op.ID)] = msg.order
		a.step(ctx, supervise.Submitted{Op: a.machineOp(msg.order.op)}, nil)
	case ended:
		a.operated(ctx, msg)
	case looked:
		a.looked(ctx, msg)
	case letGo:
		a.letGo()
	case examined:
		a.examined(ctx, msg)
	case autoSpawned:
		a.spawned(msg)
	case autoStarted:
		a.autoStarted(ctx, msg)
	case condemned:
		a.condemn(ctx, msg)
	case takenDown:
		a.takenDown(ctx, msg)
	case freezesChanged:
		a.refreeze(ctx)
	case pidFileSeen:
		a.readPidFile(ctx, msg)
	case pidFileRead:
		a.checking = false
		a.step(ctx, msg.event, nil)
	case faulted:
		a.faulted(ctx, msg)
	case mateDied:
		a.recount(ctx)
	case ticking:
		a.tick(ctx)
	case supervise.Swept:
		a.tick(ctx)
		a.sweep(ctx)
	case died:
		a.died(ctx, msg)
	case supervise.Event:
		a.step(ctx, msg, nil)
	}
}

// operated takes over what came of an operation.
func (a *actor) operated(ctx context.Context, msg ended) {
	if msg.waited {
		a.starting = journal.Exec{}
	}
	if !msg.report.Outcome.Other {
		a.learn(msg.report.Aliases)
	}
	a.pidFileRead(msg.report.PidFileWritten)
	a.named = namesOf(a.ops[msg.id].op.Spec)
	a.vouch(ctx, &msg)
	a.step(ctx, supervise.Finished{ID: msg.id, Outcome: msg.report.Outcome}, &msg)
	if !msg.report.Outcome.Other && msg.facts.shown {
		a.gathered(msg.report.Instances)
	}
}

func (a *actor) died(ctx context.Context, msg died) {
	a.death = msg.death
	main := supervise.Identity(msg.death.Identity)
	if main == a.state.Main {
		a.seenAlive() // until just now
		if a.state.Work == supervise.Idle {
			a.noteExit(msg.death.Identity, a.state) // the search for a successor, which follows, takes longer
		}
	}
	a.step(ctx, supervise.Died{Main: main}, nil)
}

// looked takes over what a look has found, and looks again if something
// happened since it was asked for.
func (a *actor) looked(ctx context.Context, msg looked) {
	a.looking = false
	a.learn(msg.aliases)
	current := msg.event.Gen == a.state.Gen // else an operation has changed what it saw
	a.step(ctx, msg.event, nil)
	if current && msg.event.Sight != supervise.Doubt {
		a.gathered(msg.instances)
	}
	if msg.event.Gen != a.lookGen {
		a.look(ctx, a.lookGen)
	}
}

// pidFileRead records that work has read the pid file, so that the next sweep
// does not read it again.
func (a *actor) pidFileRead(written time.Time) {
	if !written.IsZero() {
		a.pidFileWritten = written
	}
}

func (a *actor) autoStarted(ctx context.Context, msg autoStarted) {
	a.giveWay()
	defer a.engine.drain.end()
	r := &msg.report
	if a.trouble = r.Message; r.Over {
		a.starting = journal.Exec{}
	}
	a.learn(r.Aliases)
	if r.Ran {
		a.dueAt = time.Time{}
	}
	if r.Ran && a.state.Policy.Resident {
		a.engine.cfg.Restarted()
	}
	if r.Ran && (r.Outcome.Sight == supervise.Alive || r.Outcome.Class == supervise.Done) {
		a.startedAt = time.Now().UTC()
	}
	a.pidFileRead(r.PidFileWritten)
	a.step(ctx, supervise.AutoStarted{Outcome: r.Outcome, Ran: r.Ran}, nil)
	a.gathered(r.Instances)
	a.logStart(r)
}

// spawned makes durable that a start command runs or is about to: no agent
// process may run another one beside it.
func (a *actor) spawned(msg autoSpawned) {
	defer close(msg.saved)
	a.starting = msg.exec
	a.trySave()
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
	state, effects := supervise.Step(a.state, a.engine.now(), event)
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

// settle takes over which process is the key's.
func (a *actor) settle() {
	if a.state.Main != (supervise.Identity{}) {
		a.seenAlive()
	}
	a.claim()
}

// claim tells the other keys whose the process is. The operation that found it
// may have done so already.
func (a *actor) claim() {
	main := proc.Identity(a.state.Main)
	switch {
	case main.IsZero():
		a.engine.host.Claims.Release(a.key)
	case a.state.Kept:
		a.engine.host.Claims.Claim(main, a.key, a.spec.PidPath != "")
	}
}

// note follows up on what the step changed.
func (a *actor) note(was supervise.State) {
	if a.state.Main != was.Main {
		if was.Main != (supervise.Identity{}) {
			a.last = proc.Identity(was.Main)
			if a.watches(was.Main) {
				a.seenAlive() // until just now
			}
			a.noteExit(a.last, was)
		}
		a.settle()
	}
	up := a.state.Desired == supervise.Up
	if up != (was.Desired == supervise.Up) {
		a.registeredAt = time.Time{}
		if up {
			a.registeredAt = time.Now().UTC()
		} else {
			a.schedule.drop()
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
	if a.state.Phase != supervise.Backoff && a.state.Phase != supervise.Fatal {
		a.retryAt = time.Time{}
	}
	if a.state.Phase == supervise.Running || !up {
		a.dueAt = time.Time{}
	}
}

// noteExit records that a process of the key has ended, how if that was heard, and
// what ended it if that is known: an operation or a take-down.
func (a *actor) noteExit(main proc.Identity, was supervise.State) {
	if proc.Alive(main) {
		return // another one took its place
	}
	exit := &agentproto.LastExit{At: time.Now().UTC()}
	if a.death.Identity == main {
		exit.At = a.death.At.UTC()
		exit.Known, exit.Code, exit.Signal = a.death.Known, a.death.Code, a.death.SignalName()
	}
	switch was.Work {
	case supervise.Operating:
		exit.Why = procspec.ActionName(string(was.Op.Action))
	case supervise.TakingDown:
		exit.Why = string(a.takingDown)
	case supervise.Idle, supervise.AutoStarting:
		if a.engine.oom.Killed(main) {
			exit.Known, exit.Signal, exit.Why = true, "SIGKILL", "out of memory"
		}
	}
	a.lastExit = exit
}
