package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

const (
	// lookLimit bounds the looks at a time. Those that search the host wait for
	// one reading of it together, so that many at a time make a burst cheap.
	lookLimit = 256

	// runLimit bounds the periodic processes that are being started at a time.
	// Their commands may take long, and must not keep the dead from being
	// started again.
	runLimit = 16
	manyRuns = 1 << 20 // that may begin at once: how often they come is not the agent's choice

	// scopeTimeout is how long systemd may take to make the first scope.
	scopeTimeout = 5 * time.Second
)

// Engine carries out operations and keeps processes alive. Make it with [New],
// call [Engine.Recover] once, [Engine.Resume] when the server's time is known,
// then [Engine.Submit]; [Engine.Stop] ends it.
type Engine struct {
	cfg Config
	system

	host      *procop.Host
	gate      *gate
	gauges    *gauges
	inquiries *inquiries
	runs      *gate     // for periodic processes, which come when they are meant to
	began     time.Time // by this host's clock, at beganAt
	beganAt   supervise.Moment
	drain     *drain
	damage    string // the journal's last one; "" = none
	limiter   *limiter
	settings  atomic.Pointer[agentproto.Settings]
	lastNow   atomic.Uint64 // in clock ticks since boot

	// life ends with Stop. It is a field because operations are handed over
	// without waiting for them: no caller's context lives as long as they do.
	life   context.Context //nolint:containedctx // see above
	cancel context.CancelFunc
	work   sync.WaitGroup // everything but the actors'
	loops  sync.WaitGroup // the actors'

	mu         sync.Mutex
	actors     map[string]*actor
	resting    map[string]resting   // keys without an actor of which something is remembered
	downs      map[string]time.Time // keys that are wanted down, since when
	recovered  []journal.Op         // by Recover, not begun; they wait for Resume
	stopped    bool
	supervised int
}

// system is this host's processes, as the engine gets at them.
type system struct {
	bootID  string
	finder  *proc.Finder
	runner  *proc.Runner
	watcher *proc.Watcher
	oom     *proc.OOMLog
}

func openSystem() (system, error) {
	host, err := proc.ReadHost()
	if err != nil {
		return system{}, err
	}
	accounts := proc.NewAccounts()
	runner, err := proc.NewRunner(accounts)
	if err != nil {
		return system{}, err
	}
	watcher, err := proc.NewWatcher(false)
	if err != nil {
		return system{}, err
	}
	return system{bootID: host.BootID, finder: proc.NewFinder(accounts), runner: runner, watcher: watcher, oom: proc.NewOOMLog()}, nil
}

// New returns a running engine that knows no process yet.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("operate: %w", err)
	}
	system, err := openSystem()
	if err != nil {
		return nil, fmt.Errorf("operate: %w", err)
	}
	if cfg.Scopes {
		if err := useScopes(system.runner); err != nil {
			cfg.Log.WithError(err).Error("processes terminate with the agent")
		}
	}
	e := &Engine{
		cfg: cfg, system: system,
		gate:   newGate(cfg.StartLimit, cfg.Timing.StartBurst, cfg.Timing.StartEvery),
		runs:   newGate(runLimit, manyRuns, time.Second),
		gauges: newGauges(), inquiries: newInquiries(), drain: newDrain(),
		actors: map[string]*actor{}, resting: map[string]resting{}, downs: map[string]time.Time{},
	}
	e.host = e.newHost()
	e.host.Finder.Managed = e.host.Claims.PIDs
	e.settings.Store(&agentproto.Settings{})
	e.began, e.beganAt = time.Now().Round(0), e.now()
	e.life, e.cancel = context.WithCancel(context.Background())
	e.limiter = newLimiter(e)
	e.work.Go(e.sweep)
	e.work.Go(func() { e.limiter.run(e.life) })
	e.work.Go(e.trimOutputs)
	e.work.Go(e.thaw)
	return e, nil
}

// useScopes has commands run outside of the agent's unit, if systemd answers.
func useScopes(r *proc.Runner) error {
	ctx, cancel := context.WithTimeout(context.Background(), scopeTimeout)
	defer cancel()
	return r.UseScopes(ctx)
}

// Submit takes over an operation that is durable already. It does not wait;
// the result goes to Config.Finished. After Stop operations are left to the
// next agent process.
func (e *Engine) Submit(op journal.Op) { e.submit(order{op: op}) }

func (e *Engine) submit(o order) {
	op := o.op
	if procspec.ActionName(op.Action) == "" {
		e.turnAway(e.life, op, procop.UnknownAction(op.Action))
		return
	}
	if err := procspec.Check(op.Action, &op.Spec); err != nil {
		e.turnAway(e.life, op, procop.Refused("bad spec: "+strings.ReplaceAll(err.Error(), "\n", "; ")))
		return
	}
	if op.Action == agentproto.ActionStatus {
		e.answer(op)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.actor(op.Spec.Key).mailbox.put(submission{order: o})
	}
}

// actor returns the actor of a key, which it starts if there is none. The
// caller holds e.mu.
func (e *Engine) actor(key string) *actor {
	a, ok := e.actors[key]
	if !ok {
		a = newActor(e, key)
		if left, ok := e.resting[key]; ok {
			a.wake(left)
			delete(e.resting, key)
		}
		e.actors[key] = a
		a.mailbox.open()
	}
	return a
}

// retire forgets an actor unless something has just come in for it.
func (e *Engine) retire(a *actor) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !a.mailbox.closeIfEmpty() {
		return false
	}
	delete(e.actors, a.key)
	e.host.Claims.RemoveMarks(a.key)
	if a.state.Desired == supervise.Down {
		e.resting[a.key] = a.rest()
	}
	return true
}

// fault counts a fault of the agent with a key.
func (e *Engine) fault(key, cause string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.actors[key]; ok {
		a.fault(cause)
	}
}

// now is the time that the machines count in.
func (e *Engine) now() supervise.Moment {
	ticks, err := proc.NowTicks()
	if err != nil {
		ticks = e.lastNow.Load() // it stands still, and ends no wait early
	}
	e.lastNow.Store(ticks)
	return supervise.Moment(time.Duration(ticks) * (time.Second / proc.TicksPerSecond)) //nolint:gosec // a clock of the kernel: it would take 292 years
}

func (e *Engine) snapshotOf(key string) *snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.actors[key]; ok {
		return a.snapshot.Load()
	}
	if left, ok := e.resting[key]; ok {
		return left.snapshot
	}
	return &snapshot{}
}

// newHost returns what operations use of this host and of the engine.
func (e *Engine) newHost() *procop.Host {
	t := e.cfg.Timing
	return &procop.Host{
		BootID: e.bootID, Instance: e.cfg.Instance, Finder: e.finder, Runner: e.runner,
		Claims: procop.NewClaims(), Groups: procop.NewGroups(), Outputs: procop.NewOutputs(e.cfg.RunDir, e.cfg.Log),
		Commands: make(procop.Slots, e.cfg.CommandLimit), Searches: make(procop.Slots, lookLimit),
		Timing: procop.Timing{
			StopPoll: t.StopPoll, WindowPoll: t.WindowPoll, Settle: t.Settle, ForegroundAfter: t.ForegroundAfter,
			KillWait: t.KillWait, ReloadWait: t.ReloadWait, KillGrace: t.KillGrace, TakeDownGrace: t.TakeDownGrace,
		},
		Engine: procop.Engine{
			Execute: e.cfg.Ledger.Execute, InTime: e.cfg.InTime, DelayStarts: e.pauseStarts, Crash: e.cfg.Crash,
			Supervised: func(key string) (string, bool) {
				s := e.snapshotOf(key)
				return s.spec.PidPath, s.supervised()
			},
		},
	}
}

// Supervised is the number of processes that are kept alive.
func (e *Engine) Supervised() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.supervised
}

// Survey is how the processes of this host stand.
type Survey struct {
	Supervised map[string]int // number in each phase of those that are kept alive
	Unsettled  int            // nobody has looked at them since the agent started
}

// Survey waits for no operation.
func (e *Engine) Survey() Survey {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Survey{Supervised: map[string]int{}}
	for _, a := range e.actors {
		seen := a.snapshot.Load()
		if seen.supervised() {
			s.Supervised[string(seen.phase)]++
		}
		if !seen.settled {
			s.Unsettled++
		}
	}
	return s
}

func (e *Engine) countSupervised(up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if up {
		e.supervised++
	} else {
		e.supervised--
	}
}

func (e *Engine) trimOutputs() {
	tick := time.NewTicker(e.cfg.Timing.TrimOutputs)
	defer tick.Stop()
	for {
		select {
		case <-e.life.Done():
			return
		case <-tick.C:
			e.host.Outputs.Trim()
		}
	}
}

// endActors waits for the goroutines of the actors, none of which begins any
// more, and ends what the actors wait for.
func (e *Engine) endActors() {
	e.mu.Lock()
	actors := slices.Collect(maps.Values(e.actors))
	e.mu.Unlock()
	for _, a := range actors {
		a.mailbox.close()
	}
	e.loops.Wait()
	for _, a := range actors {
		a.leave()
	}
}

// Stop ends the engine: no operation begins any more, and those under way have
// Timing.Drain, and ctx, to end. What runs then is left alone, as all managed
// processes are; the journal has it for the next agent process.
func (e *Engine) Stop(ctx context.Context) {
	e.drain.wait(ctx, e.cfg.Timing.Drain)
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.cancel()
	e.endActors()
	e.work.Wait()
	e.oom.Close()
	if err := e.watcher.Close(); err != nil {
		e.cfg.Log.WithError(err).Warn("process watcher not closed")
	}
}
