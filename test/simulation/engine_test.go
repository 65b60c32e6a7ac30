package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/test/cluster/check"
)

// engine executes operations on a modeled host like [operate.Engine] on a real one:
// it decides with agent/supervise, records in the agent's journal, and recovers
// with the same rules.
type engine struct {
	cfg  operate.Config
	host *host
	dead *atomic.Bool // its commands no longer have an effect on the host

	life context.Context // Submit does not wait for operations
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	keepers map[string]*keeper
	waiting []journal.Op // recovered operations that have not begun
	stopped bool
}

func newEngine(cfg operate.Config, h *host, dead *atomic.Bool) *engine {
	e := &engine{cfg: cfg.WithDefaults(), host: h, dead: dead, keepers: map[string]*keeper{}}
	e.life, e.stop = context.WithCancel(context.Background())
	return e
}

// keeper runs the state machine of one process.
type keeper struct {
	key   string
	spec  agentproto.Spec
	state supervise.State
	ops   map[string]order
}

// order is an operation, and its result when it has ended.
type order struct {
	op     journal.Op
	exec   *journal.Exec // set if an earlier agent process began it
	result *agentproto.Result
}

// saved is the state of a process in the journal.
type saved struct {
	Spec     agentproto.Spec    `json:"spec"`
	Desired  supervise.Desired  `json:"desired"`
	Phase    supervise.Phase    `json:"phase"`
	Main     supervise.Identity `json:"main"`
	Failures int                `json:"failures"`
}

// before is the state before a command in the journal.
type before struct{ Main supervise.Identity }

func (e *engine) Apply(agentproto.Settings) {}

// Interrupt does nothing: the commands of this engine are short.
func (e *engine) Interrupt(string, journal.ID) {}

func (e *engine) Output(operate.OutputQuery) (operate.OutputPage, error) {
	return operate.OutputPage{}, nil
}

func (e *engine) Overview() []local.Process { return nil }
func (e *engine) Survey() operate.Survey    { return operate.Survey{} }
func (e *engine) now() supervise.Moment     { return supervise.Moment(e.host.elapsed()) }

func (e *engine) policy(s *agentproto.Spec) supervise.Policy {
	const ms = time.Millisecond
	t, interval := e.cfg.Timing, time.Duration(s.StartIntervalMS)*ms
	return supervise.Policy{
		Resident: s.Type == "resident", Retries: s.StartRetries, Interval: interval, MaxDelay: t.MaxDelay,
		StableAfter: t.StableAfter, LongRun: t.LongRun, RecoverDelay: t.RecoverDelay,
	}
}

// keeper returns the keeper of a key. The caller has locked e.mu.
func (e *engine) keeper(key string) *keeper {
	k := e.keepers[key]
	if k == nil {
		k = &keeper{key: key, ops: map[string]order{}}
		e.keepers[key] = k
	}
	return k
}

// Recover continues the work of an earlier agent process. It observes the processes
// and determines the outcomes of begun operations; other operations wait for
// Resume.
func (e *engine) Recover(left journal.Recovered) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, text := range left.Processes {
		var s saved
		if json.Unmarshal(text, &s) != nil {
			continue
		}
		k := e.keeper(key)
		k.spec = s.Spec
		k.state = supervise.State{
			Saved:      supervise.Saved{Desired: s.Desired, Phase: s.Phase, Main: s.Main, Failures: s.Failures, Since: e.now()},
			SpecStored: true, Policy: e.policy(&s.Spec),
		}
		e.step(k, supervise.Recovered{})
	}
	for _, open := range left.Open {
		if open.Executing {
			e.submit(order{op: open.Op, exec: &open.Exec})
		} else {
			e.waiting = append(e.waiting, open.Op)
		}
	}
}

// Resume begins the waiting operations, unless their time has passed.
func (e *engine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting := e.waiting
	e.waiting = nil
	for _, op := range waiting {
		late := !op.NotAfter.IsZero() && !e.cfg.InTime(op.NotAfter)
		switch {
		case e.cfg.InTime(op.ReceivedAt.Add(-clockError)):
			e.work.Go(func() { e.finish(op, refused(op, "agent restarted, not executed: the servers' clock was set back")) })
		case late || e.cfg.InTime(op.ReceivedAt.Add(budget(&op.Spec))):
			e.submit(order{op: op}) // rejects expired operations
		default:
			e.work.Go(func() { e.finish(op, refused(op, "agent restarted, not executed: too old")) })
		}
	}
}

// clockError is the maximum difference between two estimates of the servers' time.
const clockError = 5 * time.Second

// budget returns the maximum duration of an operation.
func budget(s *agentproto.Spec) time.Duration {
	return time.Duration(2*s.OpTimeoutMS+s.StartCheckEndMS+s.StopCheckMS) * time.Millisecond
}

func (e *engine) Submit(op journal.Op) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.submit(order{op: op})
}

func (e *engine) submit(o order) {
	switch {
	case e.stopped:
	case o.op.Action == agentproto.ActionStatus:
		e.work.Go(func() { e.inspect(o.op) })
	default:
		k := e.keeper(o.op.Spec.Key)
		id := opID(o.op.ID)
		k.ops[id] = o
		e.step(k, supervise.Submitted{Op: supervise.Op{
			ID: id, Action: supervise.Action(o.op.Action), Fence: o.op.Fence, Item: o.op.Item, Policy: e.policy(&o.op.Spec),
		}})
	}
}

func opID(id journal.ID) string { return fmt.Sprintf("%s/%d", id.Task, id.Item) }

// step passes an event to the state machine and performs the effects. The caller
// has locked e.mu.
func (e *engine) step(k *keeper, event supervise.Event) {
	if e.stopped {
		return
	}
	var effects []supervise.Effect
	k.state, effects = supervise.Step(k.state, e.now(), event)
	for _, effect := range effects {
		e.perform(k, effect)
	}
	e.cfg.Changed()
}

// later calls event in a goroutine and passes its result to step.
func (e *engine) later(k *keeper, event func() supervise.Event) {
	e.work.Go(func() {
		ev := event()
		e.mu.Lock()
		defer e.mu.Unlock()
		if ev != nil {
			e.step(k, ev)
		}
	})
}

func (e *engine) perform(k *keeper, effect supervise.Effect) {
	switch effect := effect.(type) {
	case supervise.Perform:
		o := k.ops[effect.ID]
		e.later(k, func() supervise.Event { return e.carryOut(k, o) })
	case supervise.Refuse:
		o := k.ops[effect.ID]
		delete(k.ops, effect.ID)
		e.work.Go(func() { e.finish(o.op, refused(o.op, "superseded by a later command for this process")) })
	case supervise.End:
		o := k.ops[effect.ID]
		delete(k.ops, effect.ID)
		e.finish(o.op, *o.result)
	case supervise.StoreSpec:
		k.spec = k.ops[effect.ID].op.Spec
	case supervise.Save:
		e.save(k)
	case supervise.AutoStart:
		spec := k.spec
		e.later(k, func() supervise.Event { return e.autoStart(k.key, spec) })
	case supervise.Search:
		e.later(k, func() supervise.Event {
			main := e.host.main(k.key)
			return supervise.Observed{Gen: effect.Gen, Observation: sight(main), Main: main}
		})
	case supervise.Watch:
		e.watch(k, effect.Main)
	case supervise.Arm:
		e.later(k, func() supervise.Event {
			if !e.pause(max(effect.Delay, effect.Least)) {
				return nil
			}
			return supervise.Fired{Timer: effect.Timer, Gen: effect.Gen}
		})
	case supervise.Yield, supervise.Terminate, supervise.Emit:
	}
}

func sight(main supervise.Identity) supervise.Observation {
	if main == (supervise.Identity{}) {
		return supervise.Gone
	}
	return supervise.Alive
}

func (e *engine) watch(k *keeper, main supervise.Identity) {
	if main == (supervise.Identity{}) {
		return
	}
	died := func() {
		if e.life.Err() == nil {
			e.later(k, func() supervise.Event { return supervise.Died{Main: main} })
		}
	}
	if !e.host.watch(main, died) {
		died()
	}
}

// save stores the state that a later agent process needs.
func (e *engine) save(k *keeper) {
	var text json.RawMessage
	if k.state.SpecStored && k.state.Desired != supervise.None {
		s := saved{Spec: k.spec, Desired: k.state.Desired, Phase: k.state.Phase, Main: k.state.Main, Failures: k.state.Failures}
		text, _ = json.Marshal(s) //nolint:errchkjson // all fields can be encoded
	}
	_ = e.cfg.Ledger.SaveProcess(k.key, text) // the next change saves again
}

// pause reports false if the engine ended first.
func (e *engine) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-e.life.Done():
		return false
	}
}

// command is one control command of an operation.
type command struct {
	verb check.Verb
	line string
}

// commandTime is the duration of a control command.
const commandTime = 300 * time.Millisecond

// carryOut executes an operation and returns its outcome, or nil if the engine
// ended first.
func (e *engine) carryOut(k *keeper, o order) supervise.Event {
	var r agentproto.Result
	var class supervise.Class
	switch {
	case o.exec != nil:
		class, r = e.takeUp(o)
	case e.cfg.Ledger.Begin(o.op.ID) != nil:
		class, r = supervise.Refused, refused(o.op, "canceled") // the journal has the result
	case !o.op.NotAfter.IsZero() && !e.cfg.InTime(o.op.NotAfter):
		class, r = supervise.Refused, refused(o.op, "expired, not executed")
	default:
		var ok bool
		if class, r, ok = e.execute(o.op); !ok {
			return nil
		}
	}
	main := e.host.main(k.key)
	r.Status = &agentproto.Status{At: time.Now().UTC(), Running: sight(main) == supervise.Alive}
	e.mu.Lock()
	o.result = &r
	k.ops[opID(o.op.ID)] = o
	e.mu.Unlock()
	return supervise.Finished{ID: opID(o.op.ID), Outcome: supervise.Outcome{Class: class, Observation: sight(main), Main: main}}
}

// execute runs the commands of an operation. It reports false if the agent ended
// first.
func (e *engine) execute(op journal.Op) (supervise.Class, agentproto.Result, bool) {
	main := e.host.main(op.Spec.Key)
	runs := sight(main) == supervise.Alive
	var commands []command
	stop := command{check.VerbStop, op.Spec.StopCmd}
	switch op.Action {
	case agentproto.ActionStart:
		if runs {
			return supervise.Already, result(op, agentproto.CodeAlreadyRunning, agentproto.ReasonAlreadyRunning), true
		}
		commands = []command{{check.VerbStart, op.Spec.StartCmd}}
	case agentproto.ActionRestart:
		if runs {
			commands = append(commands, stop)
		}
		commands = append(commands, command{check.VerbStart, op.Spec.StartCmd})
	case agentproto.ActionStop:
		commands = []command{stop}
	case agentproto.ActionKill:
		commands = []command{{check.VerbKill, op.Spec.KillCmd}}
	case agentproto.ActionReload:
		commands = []command{{check.VerbReload, op.Spec.ReloadCmd}}
	default:
		return supervise.Refused, refused(op, "the simulation has no such action"), true
	}
	if !runs && op.Action != agentproto.ActionStart && op.Action != agentproto.ActionRestart {
		return supervise.Already, result(op, agentproto.CodeNotRunning, agentproto.ReasonNotRunning), true
	}
	text, _ := json.Marshal(before{main}) //nolint:errchkjson // all fields can be encoded
	for _, c := range commands {
		exec := journal.Exec{BootID: e.host.boot, At: time.Now().UTC(), Before: text}
		if err := e.cfg.Ledger.Execute(op.ID, exec); err != nil {
			return supervise.Failed, result(op, agentproto.CodeFailed, agentproto.ReasonCommandFailed), true
		}
		e.cfg.Crash(operate.CrashBeforeExec)
		if !e.run(op.Spec, c, opID(op.ID)) {
			return 0, agentproto.Result{}, false
		}
		e.cfg.Crash(operate.CrashAfterSpawn)
		if !e.pause(commandTime) {
			return 0, agentproto.Result{}, false
		}
	}
	return supervise.Done, result(op, agentproto.CodeSuccess, agentproto.ReasonSucceeded), true
}

// run reports false if the agent is dead; the command then does not run.
func (e *engine) run(spec agentproto.Spec, c command, operation string) bool {
	if e.dead.Load() || e.life.Err() != nil {
		return false
	}
	e.host.run(spec.Key, c.verb, c.line, operation, spec.Type == "resident")
	return true
}

// takeUp determines the outcome of an operation that an earlier agent process
// began. It runs no command.
func (e *engine) takeUp(o order) (supervise.Class, agentproto.Result) {
	var was before
	_ = json.Unmarshal(o.exec.Before, &was) // without it every process counts as a new one
	main := e.host.main(o.op.Spec.Key)
	runs := sight(main) == supervise.Alive
	switch o.op.Action {
	case agentproto.ActionStart, agentproto.ActionRestart:
		if runs && main != was.Main {
			return supervise.Done, result(o.op, agentproto.CodeSuccess, agentproto.ReasonSucceeded)
		}
	case agentproto.ActionStop, agentproto.ActionKill:
		if !runs {
			return supervise.Done, result(o.op, agentproto.CodeSuccess, agentproto.ReasonSucceeded)
		}
		return supervise.Failed, result(o.op, agentproto.CodeCheckFailed, agentproto.ReasonCheckFailed)
	}
	return supervise.Failed, result(o.op, agentproto.CodeFailed, agentproto.ReasonCommandFailed)
}

// autoStart starts a supervised process again.
func (e *engine) autoStart(key string, spec agentproto.Spec) supervise.Event {
	ran := false
	if e.host.main(key) == (supervise.Identity{}) {
		if ran = e.run(spec, command{check.VerbStart, spec.StartCmd}, "auto"); !ran || !e.pause(commandTime) {
			return nil
		}
	}
	main := e.host.main(key)
	return supervise.AutoStarted{Outcome: supervise.Outcome{Class: supervise.Done, Observation: sight(main), Main: main}, Ran: ran}
}

// inspect executes a status.
func (e *engine) inspect(op journal.Op) {
	if !op.NotAfter.IsZero() && !e.cfg.InTime(op.NotAfter) {
		e.finish(op, refused(op, "expired, not executed"))
		return
	}
	r := result(op, agentproto.CodeSuccess, agentproto.ReasonSucceeded)
	r.Status = &agentproto.Status{At: time.Now().UTC(), Running: sight(e.host.main(op.Spec.Key)) == supervise.Alive}
	e.finish(op, r)
}

// finish makes a result durable and passes it to the agent.
func (e *engine) finish(op journal.Op, r agentproto.Result) {
	e.cfg.Crash(operate.CrashBeforeDone)
	if e.cfg.Ledger.Finish(op.ID, r) != nil {
		return // the operation stays open
	}
	e.cfg.Crash(operate.CrashAfterDone)
	e.cfg.Finished(op, r)
}

func result(op journal.Op, code int, reason string) agentproto.Result {
	now := time.Now().UTC()
	message := "success"
	if code != agentproto.CodeSuccess {
		message = op.Action + ": " + reason
	}
	return agentproto.Result{Item: op.Item, Code: code, Reason: reason, Message: message, AcceptedAt: op.AcceptedAt, StartedAt: now, FinishedAt: now}
}

func refused(op journal.Op, why string) agentproto.Result {
	r := result(op, agentproto.CodeFailed, agentproto.ReasonRefused)
	r.Message, r.StartedAt = op.Action+": "+why, time.Time{}
	return r
}

func (e *engine) Supervised() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, k := range e.keepers {
		if k.state.Desired == supervise.Up {
			n++
		}
	}
	return n
}

func (e *engine) Processes() []agentproto.ManagedProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []agentproto.ManagedProcess
	for key, k := range e.keepers {
		if k.state.SpecStored {
			all = append(all, agentproto.ManagedProcess{
				Key: key, Namespace: k.spec.Namespace, Name: k.spec.Name, ProcName: k.spec.ProcName, Desired: string(k.state.Desired),
				Status: agentproto.Status{At: time.Now().UTC(), Running: sight(e.host.main(key)) == supervise.Alive},
			})
		}
	}
	return all
}

// Stop does not end processes; running operations stay open in the journal.
func (e *engine) Stop(context.Context) {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.stop()
	e.work.Wait()
}
