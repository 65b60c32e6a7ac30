package undo

import (
	"context"
	"errors"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// TaskReader reads tasks and their items.
type TaskReader interface {
	Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
}

// ProcessAt is a process on a host.
type ProcessAt struct {
	Host procfleet.Host
	Key  string // see [procfleet.ProcessSpec.Key]
}

const (
	maxLater  = 10_000 // maximum number of later tasks of an undo
	laterPage = 100
)

// FindLater sets, for each process in later, the newest task after a task that changed it, except
// the undo of that task. It reads at most about limit tasks, and reports whether these were all.
func FindLater(ctx context.Context, store TaskReader, task *procfleet.Task, limit int, later map[ProcessAt]procfleet.TaskID) (complete bool, err error) {
	query := taskstore.TaskQuery{Limit: min(laterPage, limit)}
	for read := 0; read < limit; {
		page, err := store.Tasks(ctx, query)
		if err != nil {
			return false, err
		}
		for i := range page {
			t := &page[i]
			if t.Number <= task.Number {
				return true, nil
			}
			if t.UndoOf == task.ID || t.State == procfleet.TaskRejected || !slices.ContainsFunc(t.Actions, procfleet.Action.Mutating) {
				continue
			}
			if err := markLater(ctx, store, t, later); err != nil {
				return false, err
			}
		}
		if len(page) < query.Limit {
			return true, nil
		}
		read += len(page)
		query.Before = page[len(page)-1].Number
	}
	return false, nil
}

// markLater sets the task of each of its processes in later, unless a newer one is set.
func markLater(ctx context.Context, store TaskReader, task *procfleet.Task, later map[ProcessAt]procfleet.TaskID) error {
	for chunk := range task.Chunks {
		rows, err := store.Chunk(ctx, task.ID, chunk)
		if errors.Is(err, taskstore.ErrNotFound) { // the task has expired
			return nil
		}
		if err != nil {
			return err
		}
		for i := range rows {
			at := ProcessAt{rows[i].Item.Target.Host, rows[i].Spec.Key()}
			changes := rows[i].Item.Action.Mutating() && rows[i].State != procfleet.StateCancelled
			if found, wanted := later[at]; wanted && found == "" && changes {
				later[at] = task.ID
			}
		}
	}
	return nil
}
