// Package undo makes the task that reverts a rollout: a process gets the spec that it had on its
// host before the rollout released the host, and a process that was not registered there is
// stopped.
package undo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// Dialect is the [procfleet.Task.Dialect] of tasks that revert a rollout.
const Dialect = "native.undo"

const (
	chunkBytes = 512 << 10 // approximate limit of the specs of a chunk
	slack      = time.Minute
)

// Store has the calls to a task store that this package uses.
type Store interface {
	TaskReader
	PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error)
}

// ErrNothing means that a rollout has released no process whose previous spec is known, and that no
// later task has operated.
var ErrNothing = errors.New("no released process has a known previous spec, or later tasks have operated them all")

// ErrTooMany means that too many tasks were created after the rollout to find all that operated its
// processes.
var ErrTooMany = fmt.Errorf("more than %d tasks were created since, so it is unknown which hosts later tasks have operated", maxLater)

// Undo is the task that reverts a rollout.
type Undo struct {
	Draft      taskstore.Draft
	unregister []catalog.Process // processes that were not registered before
}

// Acts reports whether an action has an effect that an undo reverts.
func Acts(a procfleet.Action) bool { return a.Registers() || a == procfleet.ActionReload }

// Make returns the task that reverts a rollout, over the processes that it has released and that no
// later task has operated. The process that was released last is the first. All is true to ignore
// the window of the rollout. Calls for one task have the same idempotency key.
func Make(ctx context.Context, store Store, task *procfleet.Task, all bool) (Undo, error) {
	steps, err := stepsOf(ctx, store, task)
	if err != nil {
		return Undo{}, err
	}
	later := make(map[ProcessAt]procfleet.TaskID, len(steps))
	for i := range steps {
		later[steps[i].at] = ""
	}
	if complete, err := FindLater(ctx, store, task, maxLater, later); err != nil {
		return Undo{}, err
	} else if !complete {
		return Undo{}, ErrTooMany
	}
	steps = slices.DeleteFunc(steps, func(s step) bool { return later[s.at] != "" })
	if len(steps) == 0 {
		return Undo{}, ErrNothing
	}
	return draft(task, steps, all)
}

// Registrar ends registrations.
type Registrar interface {
	EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) (ended []bool, err error)
}

// Unregister ends the registrations that the rollout made of processes that were not registered
// before. It may be repeated.
func (u *Undo) Unregister(ctx context.Context, registrar Registrar, task *procfleet.Task) error {
	if len(u.unregister) == 0 {
		return nil
	}
	if _, err := registrar.EndRegistrations(ctx, u.unregister, task.Number.Time()); err != nil {
		return fmt.Errorf("end registrations of task %s: %w", task.ID, err)
	}
	return nil
}

// step is one item of the new task.
type step struct {
	at     ProcessAt
	target procfleet.Target
	action procfleet.Action
	spec   *procfleet.ProcessSpec
}

// stepsOf returns a step for each released process with a known previous spec, the last one first.
func stepsOf(ctx context.Context, store Store, task *procfleet.Task) ([]step, error) {
	var steps []step
	seen := map[ProcessAt]bool{}
	for chunk := task.Chunks - 1; chunk >= 0; chunk-- {
		rows, err := store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return nil, err
		}
		kept, err := store.PreviousSpecs(ctx, task.ID, chunk)
		if err != nil {
			return nil, err
		}
		for _, p := range slices.Backward(kept) {
			for i, spec := range slices.Backward(p.Specs) {
				if at := p.From + i; at < len(rows) {
					if s, ok := revert(&rows[at], spec); ok && !seen[s.at] {
						seen[s.at] = true
						steps = append(steps, s)
					}
				}
			}
		}
	}
	return steps, nil
}

// revert returns the step that reverts an item; false if there is nothing to revert.
func revert(row *procfleet.ItemResult, previous *procfleet.ProcessSpec) (step, bool) {
	item := &row.Item
	s := step{
		at: ProcessAt{item.Target.Host, row.Spec.Key()}, target: procfleet.Target{Host: item.Target.Host},
		action: procfleet.ActionRestart, spec: previous,
	}
	if previous == nil {
		s.action, s.spec = procfleet.ActionStop, row.Spec
	}
	registered := previous != nil || item.Action.Registers() && !row.Spec.Unregistered && row.Spec.Namespace != "" && row.Spec.Name != ""
	return s, row.State != procfleet.StateCancelled && row.State != procfleet.StateRejected && Acts(item.Action) && registered && !item.Target.Host.IsZero()
}

func draft(task *procfleet.Task, steps []step, all bool) (Undo, error) {
	u := Undo{Draft: taskstore.Draft{
		Dialect: Dialect, Application: task.Application, Business: task.Business, Origin: task.Origin, Trace: task.Trace,
		UndoOf: task.ID, IdempotencyKey: taskstore.UndoKey + string(task.ID), BodyHash: Dialect, Retention: task.ExpiresAt.Sub(task.Deadline),
	}}
	c := chunker{draft: &u.Draft}
	for len(steps) > 0 {
		n := 1 // steps of one host are next to each other
		for n < len(steps) && steps[n].at.Host == steps[0].at.Host {
			n++
		}
		if err := c.addHost(steps[:n]); err != nil {
			return Undo{}, err
		}
		for _, s := range steps[:n] {
			if s.action == procfleet.ActionStop {
				u.unregister = append(u.unregister, catalog.Process{Host: s.at.Host, Namespace: s.spec.Namespace, Name: s.spec.Name})
			}
		}
		steps = steps[n:]
	}
	c.finish(task, all)
	return u, nil
}

// chunker adds hosts to the chunks of a draft.
type chunker struct {
	draft   *taskstore.Draft
	specs   map[*procfleet.ProcessSpec]int // of the last chunk
	bytes   int                            // of the specs of the last chunk
	items   int
	units   int
	longest time.Duration // of the operations on one host
}

func (c *chunker) addHost(steps []step) error {
	var longest time.Duration
	size := 0
	for _, s := range steps {
		text, err := json.Marshal(s.spec)
		if err != nil {
			return fmt.Errorf("encode a spec of host %s: %w", s.at.Host, err)
		}
		size += len(text)
		longest += s.spec.Budget(s.action)
	}
	if n := len(c.draft.Chunks); n == 0 || c.draft.Chunks[n-1].Cloud != steps[0].at.Host.Cloud ||
		len(c.draft.Chunks[n-1].Items)+len(steps) > procfleet.ChunkItems || c.bytes+size > chunkBytes {
		c.draft.Chunks = append(c.draft.Chunks, procfleet.Chunk{Cloud: steps[0].at.Host.Cloud, First: c.items})
		c.specs, c.bytes = map[*procfleet.ProcessSpec]int{}, 0
	}
	chunk := &c.draft.Chunks[len(c.draft.Chunks)-1]
	for _, s := range steps {
		at, known := c.specs[s.spec]
		if !known {
			at = len(chunk.Specs)
			c.specs[s.spec] = at
			chunk.Specs = append(chunk.Specs, *s.spec)
			c.bytes += size
		}
		chunk.Items = append(chunk.Items, procfleet.Item{Action: s.action, Spec: at, Target: s.target})
		if !slices.Contains(c.draft.Actions, s.action) {
			c.draft.Actions = append(c.draft.Actions, s.action)
		}
	}
	c.items += len(steps)
	c.units++
	c.longest = max(c.longest, longest)
	return nil
}

// finish sets the plan, the lane and the timeout, which permits each place of the window to be used
// for the longest time.
func (c *chunker) finish(task *procfleet.Task, all bool) {
	slices.Sort(c.draft.Actions)
	window := c.units
	if !all {
		window = min(window, task.Rollout.Window)
	}
	unit := min(c.longest+slack, procfleet.MaxTimeout)
	rounds := (c.units + window - 1) / window
	c.draft.Timeout = min(time.Duration(rounds)*unit+slack, procfleet.MaxRolloutTime)
	c.draft.Rollout = &procfleet.RolloutPlan{
		Window: window, Failures: procfleet.AnyFailures, Count: task.Rollout.Plan.Count, UnitTimeout: unit,
		Stages: []procfleet.RolloutStage{{Units: c.units, Chunks: len(c.draft.Chunks)}},
	}
	c.draft.Lane = procfleet.LaneSmall
	if c.items > procfleet.SmallTask {
		c.draft.Lane = procfleet.BigLane(uint64(task.Number)) //nolint:gosec // any lane does
	}
}
