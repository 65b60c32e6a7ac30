package dispatcher

import (
	"context"
	"iter"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Queries is what answering needs of a task store.
type Queries interface {
	taskstore.Queries
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error)
}

// outcomes returns the items of a task, chunk by chunk as they are asked for.
// The first chunk is read at once, so that a store which is away is known
// before an answer has begun.
func outcomes(ctx context.Context, store Queries, id procfleet.TaskID) (iter.Seq2[[]procfleet.ItemResult, error], error) {
	task, err := store.Task(ctx, id)
	if err != nil {
		return nil, err
	}
	first, err := store.Chunk(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	return func(yield func([]procfleet.ItemResult, error) bool) {
		if !yield(first, nil) {
			return
		}
		for i := 1; i < task.Chunks; i++ {
			items, err := store.Chunk(ctx, id, i)
			if !yield(items, err) || err != nil {
				return
			}
		}
	}, nil
}
