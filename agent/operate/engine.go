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
	// searchLimit bounds concurrent searches. Searches that read the whole host share one
	// reading, so concurrent searches are cheap.
	searchLimit = 256

	// runLimit bounds concurrent starts of periodic processes. Their commands may take long
	// and must not delay restarts of resident processes.
	runLimit = 16
	manyRuns = 1 << 20 // unlimited burst of periodic runs: their schedules decide how many are due

	// scopeTimeout bounds the wait for systemd to create the first scope.
	scopeTimeout = 5 * time.Second
)

// Engine carries out operations and keeps processes alive. Create it with [New], call
// [Engine.Recover] once and [Engine.Resume] when the server's time is known, then pass
// operations to [Engine.Submit]. [Engine.Stop] ends it.
type Engine struct {
	lifecycle
	registry

	cfg     Config
	host    *procop.Host
	watcher *proc.Watcher
	oom     *proc.OOMLog
	clock   clock

	starts    *startLimiter
	runs      *startLimiter // automatic starts of periodic processes
	gauges    *gauges
	inquiries *inquiries
	limiter   *limiter
	settings  atomic.Pointer[agentproto.Settings]
	damage    string // ID of the journal's latest damage; "" = none
}

// lifecycle starts and ends the goroutines of the engine.
type lifecycle struct {
	// life is canceled by Stop. It is a field because callers do not wait for their
	// operations: no caller's context lives as long as an operation.
	life   context.Context //nolint:containedctx // see above
	cancel context.CancelFunc
	work   sync.WaitGroup // all goroutines except actor loops
	loops  sync.WaitGroup // running actor loops
	drain  *drain
}

// registry holds the actors, and the state of keys without an actor.
type registry struct {
	mu        sync.Mutex
	actors    map[string]*actor
	resting   map[string]resting
	downs     map[string]time.Time // keys whose process was stopped by request, and the time of the stop
	recovered []journal.Op         // operations of Recover that have not begun; they wait for Resume
	stopped   bool
}

// clock is the time source of the state machines and schedules.
type clock struct {
	began     time.Time // host's clock at beganAt
	beganAt   supervise.Moment
	lastTicks atomic.Uint64 // latest reading, in clock ticks since boot
}

// now returns the time of the state machines. If the clock cannot be read, now returns the
// latest reading, so that no wait ends early.
func (c *clock) now() supervise.Moment {
	ticks, err := proc.NowTicks()
	if err != nil {
		ticks = c.lastTicks.Load()
	}
	c.lastTicks.Store(ticks)
	return supervise.Moment(time.Duration(ticks) * (time.Second / proc.TicksPerSecond)) //nolint:gosec // kernel clock: overflows after 292 years
}

// schedule returns the time of schedules: the host's clock if byWall, else a clock that began
// with the engine and does not change when the host's clock is set.
func (c *clock) schedule(byWall bool) time.Time {
	if byWall {
		return time.Now()
	}
	return c.began.Add(time.Duration(c.now() - c.beganAt))
}

// New starts an engine that knows no process yet.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.WithDefaults()
	e := &Engine{
		cfg:       cfg,
		starts:    newStartLimiter(cfg.StartLimit, cfg.Timing.StartBurst, cfg.Timing.StartEvery),
		runs:      newStartLimiter(runLimit, manyRuns, time.Second),
		gauges:    newGauges(),
		lifecycle: lifecycle{drain: newDrain()},
		registry:  registry{actors: map[string]*actor{}, resting: map[string]resting{}, downs: map[string]time.Time{}},
	}
	if err := e.openHost(); err != nil {
		return nil, fmt.Errorf("operate: %w", err)
	}
	e.settings.Store(&agentproto.Settings{})
	e.clock.began, e.clock.beganAt = time.Now().Round(0), e.clock.now()
	e.life, e.cancel = context.WithCancel(context.Background())
	e.inquiries, e.limiter = newInquiries(e), newLimiter(e)
	e.every(cfg.Timing.Sweep/sweepParts, sweeper{e}.next())
	e.work.Go(func() { e.limiter.run(e.life) })
	e.every(cfg.Timing.TrimOutputs, e.host.Outputs.Trim)
	e.every(cfg.Timing.FreezeCheck, e.thaw())
	return e, nil
}

// openHost opens the engine's access to the processes of this host.
func (e *Engine) openHost() error {
	host, err := proc.ReadHost()
	if err != nil {
		return err
	}
	accounts := proc.NewAccounts()
	runner, err := proc.NewRunner(accounts)
	if err != nil {
		return err
	}
	if e.watcher, err = proc.NewWatcher(); err != nil {
		return err
	}
	if e.cfg.Scopes {
		ctx, cancel := context.WithTimeout(context.Background(), scopeTimeout)
		defer cancel()
		if err := runner.UseScopes(ctx); err != nil {
			e.cfg.Log.WithError(err).Error("systemd scopes unavailable, processes end with agent")
		}
	}
	e.oom = proc.NewOOMLog()
	cfg := &e.cfg
	e.host = &procop.Host{
		BootID: host.BootID, Instance: cfg.Instance, Finder: proc.NewFinder(accounts), Runner: runner,
		Claims: procop.NewClaims(), Outputs: procop.NewOutputs(cfg.RunDir, cfg.Log), Timing: cfg.Timing.Timing,
		Commands: make(procop.Slots, cfg.CommandLimit), Searches: make(procop.Slots, searchLimit),
		Engine: procop.Engine{
			Execute: cfg.Ledger.Execute, InTime: cfg.InTime, DelayStarts: e.delayStarts, Crash: cfg.Crash,
			Supervised: func(key string) (string, bool) {
				s := e.snapshotOf(key)
				return s.spec.PidPath, s.supervised()
			},
			HasPidFile: func(key, path string) bool { return e.snapshotOf(key).hasPidFile(path) },
		},
	}
	e.host.Finder.Managed = e.host.Claims.PIDs
	return nil
}

// Submit accepts an operation that is already durable. It does not wait; the result is
// passed to Config.Finished. After Stop, Submit leaves operations to the next agent process.
func (e *Engine) Submit(op journal.Op) { e.submit(order{op: op}) }

func (e *Engine) submit(o order) {
	op := o.op
	if procspec.ActionName(op.Action) == "" {
		e.reject(e.life, op, procop.UnknownAction(op.Action))
		return
	}
	if err := procspec.Check(op.Action, &op.Spec); err != nil {
		e.reject(e.life, op, procop.Refused("bad spec: "+strings.ReplaceAll(err.Error(), "\n", "; ")))
		return
	}
	if op.Action == agentproto.ActionStatus {
		inspector{e}.answer(op)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.actor(op.Spec.Key).mailbox.put(o)
	}
}

// actor returns the actor of a key and creates it if there is none. The caller holds e.mu.
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

// retire removes an actor. It reports false if a message has arrived for the actor.
func (e *Engine) retire(a *actor) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !a.mailbox.closeIfEmpty() {
		return false
	}
	delete(e.actors, a.key)
	e.host.Claims.Forget(a.key)
	if a.state.Desired == supervise.Down {
		e.resting[a.key] = a.rest()
	}
	return true
}

// withActor calls do with the actor of a key while it holds r.mu; do must not block. It
// reports false if there is no actor.
func (r *registry) withActor(key string, do func(*actor)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.actors[key]
	if ok {
		do(a)
	}
	return ok
}

func (r *registry) snapshotOf(key string) *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.actors[key]; ok {
		return a.snapshot.Load()
	}
	if left, ok := r.resting[key]; ok {
		return left.snapshot
	}
	return &snapshot{}
}

// snapshots returns the snapshots of all listed processes, by key.
func (r *registry) snapshots() map[string]*snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make(map[string]*snapshot, len(r.actors)+len(r.resting))
	for key, left := range r.resting {
		known[key] = left.snapshot
	}
	for key, a := range r.actors {
		if s := a.snapshot.Load(); s.listed() {
			known[key] = s
		}
	}
	return known
}

// Supervised returns the number of supervised processes.
func (r *registry) Supervised() (n int) {
	for _, inPhase := range r.Survey().Supervised {
		n += inPhase
	}
	return n
}

// Survey counts the processes of this host by state.
type Survey struct {
	Supervised map[string]int // supervised processes, by phase
	Unsettled  int            // processes that were not searched for since the agent started
}

// Survey counts the processes. It does not wait for operations.
func (r *registry) Survey() Survey {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Survey{Supervised: map[string]int{}}
	for _, a := range r.actors {
		snapshot := a.snapshot.Load()
		if snapshot.supervised() {
			s.Supervised[string(snapshot.phase)]++
		}
		if !snapshot.settled {
			s.Unsettled++
		}
	}
	return s
}

// every calls fn once per interval until the engine ends.
func (l *lifecycle) every(interval time.Duration, fn func()) {
	l.work.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-l.life.Done():
				return
			case <-tick.C:
				fn()
			}
		}
	})
}

// Stop ends the engine. No further operation begins; operations in progress may continue for
// Timing.Drain, but not beyond ctx. Commands and processes that still run are left running,
// and the journal describes them for the next agent process.
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

// endActors ends the actor loops, waits for them and stops the senders of messages.
func (e *Engine) endActors() {
	e.mu.Lock()
	actors := slices.Collect(maps.Values(e.actors))
	e.mu.Unlock()
	for _, a := range actors {
		a.mailbox.close()
	}
	e.loops.Wait()
	for _, a := range actors {
		a.stop()
	}
}
