package sweep

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// ResultReader reads the results of tasks, and what a rollout keeps.
type ResultReader interface {
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error)
	Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error)
}

// Registrations ends the registrations of tasks.
type Registrations struct {
	Store     ResultReader
	Registrar Registrar
}

// endedPage is the number of results read at once.
const endedPage = 1000

// End removes the registrations that a task made, and whose hosts did not accept
// the operation: it was canceled or refused, or the host is unreachable and no agent of it has
// ever reported. Registrations that are older or were replaced since remain. A task with
// several actions may have been accepted in part, so only unreachable hosts count there. It may
// be repeated. Of a rollout, canceled and refused operations restore the specs that were registered
// before.
func (r *Registrations) End(ctx context.Context, task *procfleet.Task) error {
	if !slices.ContainsFunc(task.Actions, procfleet.Action.Registers) || task.RetryOf != "" {
		return nil
	}
	states := []procfleet.State{procfleet.StateUnreachable}
	if len(task.Actions) == 1 {
		if task.Rollout != nil && task.Counts[procfleet.StateCancelled]+task.Counts[procfleet.StateFailed] > 0 {
			if err := r.restore(ctx, task); err != nil {
				return err
			}
		}
		states = append(states, procfleet.StateCancelled, procfleet.StateFailed)
	}
	for _, state := range states {
		query := taskstore.ResultQuery{State: state, Limit: endedPage}
		for more := task.Counts[state] > 0; more; more = query.Cursor != "" {
			items, next, err := r.Store.Results(ctx, task.ID, query)
			if err != nil {
				return fmt.Errorf("read results to end registrations: %w", err)
			}
			if err := r.endOf(ctx, task, items); err != nil {
				return fmt.Errorf("end registrations: %w", err)
			}
			query.Cursor = next
		}
	}
	return nil
}

// restore registers the previous specs of items that were canceled or refused, in place of those of
// the task: as requested immediately after it, so that later requests win.
func (r *Registrations) restore(ctx context.Context, task *procfleet.Task) error {
	for chunk := range task.Chunks {
		kept, err := r.Store.PreviousSpecs(ctx, task.ID, chunk)
		if err != nil {
			return err
		}
		if len(kept) == 0 {
			continue
		}
		rows, err := r.Store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return err
		}
		var ps []catalog.Process
		var ds []catalog.Definition
		for _, p := range kept {
			for i, spec := range p.Specs {
				if row := &rows[p.From+i]; spec != nil && notBegun(row) {
					host := row.Item.Target.Host
					ps = append(ps, catalog.Process{Host: host, Namespace: spec.Namespace, Name: spec.Name})
					ds = append(ds, catalog.Definition{Spec: *spec, Hosts: []procfleet.Host{host}, Asked: task.Number.Time().Add(time.Microsecond)})
				}
			}
		}
		if err := r.replace(ctx, ps, ds); err != nil {
			return fmt.Errorf("restore registrations: %w", err)
		}
	}
	return nil
}

// replace registers definitions of those processes that are registered: the others were unregistered
// since.
func (r *Registrations) replace(ctx context.Context, ps []catalog.Process, ds []catalog.Definition) error {
	if len(ps) == 0 {
		return nil
	}
	registered, err := r.Registrar.Registrations(ctx, ps)
	if err != nil {
		return err
	}
	var there []catalog.Definition
	for i := range ds {
		if registered[i] != nil {
			there = append(there, ds[i])
		}
	}
	if len(there) == 0 {
		return nil
	}
	_, err = r.Registrar.Register(ctx, there, true)
	return err
}

func notBegun(it *procfleet.ItemResult) bool {
	return it.State == procfleet.StateCancelled || it.State == procfleet.StateFailed && it.Result.Reason == procfleet.ReasonRefused
}

func (r *Registrations) endOf(ctx context.Context, task *procfleet.Task, items []procfleet.ItemResult) error {
	items = slices.DeleteFunc(items, func(it procfleet.ItemResult) bool {
		return it.Item.Target.Host.IsZero() || it.Spec.Namespace == "" || it.Spec.Name == "" ||
			it.State == procfleet.StateFailed && it.Result.Reason != procfleet.ReasonRefused
	})
	hosts := make([]procfleet.Host, len(items))
	for i := range items {
		hosts[i] = items[i].Item.Target.Host
	}
	reports, err := r.Registrar.Reported(ctx, hosts)
	if err != nil {
		return err
	}
	var ps []catalog.Process
	for i := range items {
		it := &items[i]
		if it.State == procfleet.StateUnreachable && reports[i].Number != 0 {
			continue
		}
		ps = append(ps, catalog.Process{Host: hosts[i], Namespace: it.Spec.Namespace, Name: it.Spec.Name})
	}
	if len(ps) == 0 {
		return nil
	}
	_, err = r.Registrar.EndRegistrations(ctx, ps, task.Number.Time())
	return err
}
