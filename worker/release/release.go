// Package release moves rollouts on: it lets the store release units, registers their specs, and
// publishes their items.
package release

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/policycache"
	"github.com/procfleet/procfleet/internal/undo"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error)
	Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error)
	KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error
	PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error)
	Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error)
	Create(ctx context.Context, d taskstore.Draft) (t procfleet.Task, created bool, err error)
	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error
	LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error)
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
}

// Registrar stores the registrations of released items, the reports of agents, and maintenance
// windows.
type Registrar interface {
	Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error)
	Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error)
	Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error)
	EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) (ended []bool, err error)
	Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error)
}

// Points at which [agentlink.Link].Reached is called.
const (
	PointGranted    = "worker.granted"     // units are released in the store, none is published
	PointKept       = "worker.kept"        // the specs before are stored, the new ones are not registered
	PointRegistered = "worker.registered"  // the specs of the units are registered
	PointUndoStored = "worker.undo-stored" // the task that reverts a rollout is stored, and not linked
)

// Config holds the dependencies of a [Releaser].
type Config struct {
	*agentlink.Link
	Store     Store
	Registrar Registrar
	Audit     *audit.Log // nil records nothing
	// Changed is called with rollouts that have unpublished transitions. It must not block.
	Changed func(id procfleet.TaskID)
	Log     logrus.FieldLogger
}

// Releaser moves rollouts on. It is safe for concurrent use.
type Releaser struct {
	cfg      Config
	policies *policycache.Cache
	soon     chan procfleet.TaskID

	mu     sync.Mutex
	queued map[procfleet.TaskID]bool // tasks in soon
	clouds map[part]procfleet.CloudArea
	stops  map[procfleet.TaskID]map[string][]string // windows that stop rollouts
}

// part is a chunk of a task.
type part struct {
	task  procfleet.TaskID
	chunk int
}

const (
	// maxSoon bounds the tasks that wait for [Releaser.Run]; the sweep advances the others.
	maxSoon = 1024
	// advances is the number of rollouts that [Releaser.Run] advances at the same time.
	advances = 8
	// maxClouds bounds the chunks whose cloud area is in memory, and maxStops the rollouts whose
	// windows are. When one is reached, all are forgotten.
	maxClouds = 1 << 16
	maxStops  = 1 << 12
)

// New returns a releaser.
func New(cfg Config) *Releaser {
	return &Releaser{
		cfg: cfg, policies: policycache.New(cfg.Registrar), soon: make(chan procfleet.TaskID, maxSoon),
		queued: map[procfleet.TaskID]bool{}, clouds: map[part]procfleet.CloudArea{},
		stops: map[procfleet.TaskID]map[string][]string{},
	}
}

// Soon lets [Releaser.Run] advance a rollout, one of whose units has ended. It does not block.
func (r *Releaser) Soon(id procfleet.TaskID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued[id] {
		return
	}
	select {
	case r.soon <- id:
		r.queued[id] = true
	default:
	}
}

// Run advances rollouts until ctx ends.
func (r *Releaser) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range advances {
		running.Go(func() { r.run(ctx) })
	}
	running.Wait()
}

func (r *Releaser) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-r.soon:
			r.mu.Lock()
			delete(r.queued, id)
			r.mu.Unlock()
			callCtx, cancel := r.cfg.Calls.WithTimeout(ctx)
			err := agentlink.Guarded(func() error { return r.advance(callCtx, id) })
			cancel()
			if err != nil && ctx.Err() == nil {
				r.cfg.Log.WithError(err).WithField("task", id).Warn("rollout not advanced, left to the sweep")
			}
		}
	}
}

func (r *Releaser) advance(ctx context.Context, id procfleet.TaskID) error {
	_, err := r.Advance(ctx, id, taskstore.Advance{})
	return err
}

// Advance moves a rollout on, and registers and publishes what the store has released. It sets
// o.Closed.
func (r *Releaser) Advance(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (a taskstore.Advanced, err error) {
	if o.Closed, err = r.closed(ctx, id); err != nil {
		return a, err
	}
	if a, err = r.cfg.Store.AdvanceRollout(ctx, id, o); err != nil {
		return a, err
	}
	defer func() {
		if a.Task.Transitions > a.Task.TransitionsSent {
			r.cfg.Changed(id)
		}
	}()
	var released []taskstore.GrantedItems
	for _, g := range a.Items {
		if g.New && g.Pending > 0 {
			released = append(released, g)
		}
	}
	if len(released) > 0 {
		r.cfg.Reached(PointGranted)
		if err := r.Publish(ctx, &a.Task, released); err != nil {
			return a, err
		}
	}
	p := a.Task.Rollout
	if passed, err := r.judge(ctx, &a.Task); passed || err != nil {
		if err == nil {
			r.Soon(id)
		}
		return a, err
	}
	if p.Hold.Kind == procfleet.HoldBudget && (p.Plan.OnFailure == procfleet.OnFailureCancel || p.Plan.OnFailure == procfleet.OnFailureUndo) {
		reason := fmt.Sprintf("failed hosts: %d, tolerated: %d", p.Failed, p.Failures)
		a.Task, err = r.cfg.Store.Cancel(ctx, id, procfleet.CancelDrain, reason, taskstore.AnySeq)
	}
	return a, err
}

// Publish registers the specs of released items and publishes the items. The stream drops those
// that it received a short time ago.
func (r *Releaser) Publish(ctx context.Context, task *procfleet.Task, released []taskstore.GrantedItems) error {
	if slices.ContainsFunc(task.Actions, undo.Acts) {
		if err := r.register(ctx, task, released); err != nil {
			return err
		}
		r.cfg.Reached(PointRegistered)
	}
	refs := make([]bus.ChunkRef, len(released))
	for i, g := range released {
		cloud, err := r.cloud(ctx, task.ID, g.Chunk)
		if err != nil {
			return err
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: g.Chunk, Lane: task.Lane, Cloud: cloud, Upto: g.Grant.Upto, Granted: g.Grant.At.UnixMicro()}
	}
	if _, err := r.cfg.Bus.PublishChunks(ctx, refs, bus.GrantRound(task)); err != nil {
		return fmt.Errorf("publish %d grants: %w", len(refs), err)
	}
	return nil
}

// register stores the specs that the processes of released items have, and registers those of the
// task. Newer registrations are not replaced.
func (r *Releaser) register(ctx context.Context, task *procfleet.Task, released []taskstore.GrantedItems) error {
	var ds []catalog.Definition
	previous := make([]taskstore.PreviousSpecs, len(released))
	var ps []catalog.Process
	rows, chunk := []procfleet.ItemResult(nil), -1
	for i, g := range released {
		if g.Chunk != chunk {
			var err error
			if rows, err = r.chunk(ctx, task.ID, g.Chunk); err != nil {
				return err
			}
			chunk = g.Chunk
		}
		items := rows[g.From:g.Grant.Upto]
		for j := range items {
			ps = append(ps, catalog.Process{Host: items[j].Item.Target.Host, Namespace: items[j].Spec.Namespace, Name: items[j].Spec.Name})
		}
		previous[i] = taskstore.PreviousSpecs{Chunk: g.Chunk, From: g.From, Specs: make([]*procfleet.ProcessSpec, len(items))}
		ds = append(ds, Definitions(items, task.Number.Time())...)
	}
	if err := r.keep(ctx, task, ps, previous); err != nil {
		return err
	}
	if len(ds) == 0 {
		return nil
	}
	if _, err := r.cfg.Registrar.Register(ctx, ds, true); err != nil {
		return fmt.Errorf("register the processes of %d grants: %w", len(released), err)
	}
	return nil
}

// keep stores the registered specs of processes, the items of previous, which an undo needs. What
// was stored before is kept: the specs of the task may be registered by now.
func (r *Releaser) keep(ctx context.Context, task *procfleet.Task, ps []catalog.Process, previous []taskstore.PreviousSpecs) error {
	registered, err := r.cfg.Registrar.Registrations(ctx, ps)
	if err != nil {
		return fmt.Errorf("read the registrations of %d processes: %w", len(ps), err)
	}
	for i := range previous {
		specs := previous[i].Specs
		for j := range specs {
			if registered[j] != nil {
				specs[j] = &registered[j].Spec
			}
		}
		registered = registered[len(specs):]
	}
	if task.Rollout.Plan.Queue > 0 {
		if previous, err = r.firstReleased(ctx, task.ID, previous); err != nil {
			return err
		}
	}
	if err := r.cfg.Store.KeepPrevious(ctx, task.ID, previous); err != nil {
		return err
	}
	r.cfg.Reached(PointKept)
	return nil
}

// firstReleased drops the specs of items that were released before, and whose host was away then.
func (r *Releaser) firstReleased(ctx context.Context, id procfleet.TaskID, previous []taskstore.PreviousSpecs) (first []taskstore.PreviousSpecs, err error) {
	chunk := -1
	var kept []taskstore.PreviousSpecs
	for _, p := range previous {
		if p.Chunk != chunk {
			chunk = p.Chunk
			if kept, err = r.cfg.Store.PreviousSpecs(ctx, id, chunk); err != nil {
				return nil, err
			}
		}
		before := func(k taskstore.PreviousSpecs) bool { return k.From <= p.From && p.From < k.From+len(k.Specs) }
		if !slices.ContainsFunc(kept, before) {
			first = append(first, p)
		}
	}
	return first, nil
}

func (r *Releaser) chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	rows, err := r.cfg.Store.Chunk(ctx, id, chunk)
	if err != nil {
		return nil, fmt.Errorf("read chunk %d: %w", chunk, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.clouds) >= maxClouds {
		clear(r.clouds)
	}
	r.clouds[part{id, chunk}] = CloudOf(rows)
	return rows, nil
}

// cloud returns the cloud area of a chunk's hosts.
func (r *Releaser) cloud(ctx context.Context, id procfleet.TaskID, chunk int) (procfleet.CloudArea, error) {
	r.mu.Lock()
	cloud, known := r.clouds[part{id, chunk}]
	r.mu.Unlock()
	if known {
		return cloud, nil
	}
	rows, err := r.chunk(ctx, id, chunk)
	return CloudOf(rows), err
}

// CloudOf returns the cloud area of the hosts of a chunk's items.
func CloudOf(items []procfleet.ItemResult) procfleet.CloudArea {
	for i := range items {
		if host := items[i].Item.Target.Host; !host.IsZero() {
			return host.Cloud
		}
	}
	return 0
}

// Definitions returns the specs that items register, as requested at the time asked.
// Later items come first: of several specs for one process, the store uses the first.
func Definitions(items []procfleet.ItemResult, asked time.Time) []catalog.Definition {
	var ds []catalog.Definition
	var last *procfleet.ProcessSpec // last spec in ds
	for _, it := range slices.Backward(items) {
		spec, host := it.Spec, it.Item.Target.Host
		if !it.Item.Action.Registers() || spec.Unregistered || spec.Namespace == "" || spec.Name == "" || host.IsZero() {
			continue
		}
		if spec != last {
			ds = append(ds, catalog.Definition{Spec: *spec, Asked: asked})
			last = spec
		}
		d := &ds[len(ds)-1]
		d.Hosts = append(d.Hosts, host)
	}
	return ds
}
