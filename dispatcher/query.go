package dispatcher

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// Queries is what answering needs of a task store.
type Queries interface {
	taskstore.Queries
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
}

// allChunks returns the items of a task, chunk by chunk as they are consumed,
// beginning with the first, which was read already. The timeout bounds the read
// of each chunk.
func allChunks(ctx context.Context, store Queries, task *procfleet.Task, first []procfleet.ItemResult, timeout time.Duration) iter.Seq2[[]procfleet.ItemResult, error] {
	return func(yield func([]procfleet.ItemResult, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		rest := readAhead(ctx, store, task, timeout)
		defer func() {
			stop()
			for range rest { // until the reader has ended
			}
		}()
		if !yield(first, nil) {
			return
		}
		taken := 1
		for next := range rest {
			if !yield(next.items, next.err) || next.err != nil {
				return
			}
			taken++
		}
		if taken < task.Chunks { // ctx ended: what was read must not look like everything
			yield(nil, fmt.Errorf("chunk %d of %d: %w", taken, task.Chunks, context.Cause(ctx)))
		}
	}
}

// chunkRead is one chunk as it was read.
type chunkRead struct {
	items []procfleet.ItemResult
	err   error
}

// readAhead reads the chunks of a task after the first, one further than was
// taken, so that reading and rendering overlap. It closes the channel after
// the last one, after an error, or when ctx ends.
func readAhead(ctx context.Context, store Queries, task *procfleet.Task, timeout time.Duration) <-chan chunkRead {
	rest := make(chan chunkRead)
	go func() {
		defer close(rest)
		for i := 1; i < task.Chunks; i++ {
			bounded, cancel := context.WithTimeout(ctx, timeout)
			items, err := store.Chunk(bounded, task.ID, i)
			cancel()
			select {
			case rest <- chunkRead{items, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return rest
}

const (
	// scanPage is how many tasks are read at once to find those that a caller
	// sees among others, and scanPages how often for one page of them.
	scanPage  = 1000
	scanPages = 5
)

// visible returns a page of the tasks that a caller sees, and the id after
// which the next one begins; "" after the last. Where most tasks are other
// callers' a page may be short, or empty, although there is a next.
func (a *api) visible(ctx context.Context, page *dialect.TaskPage, sees func(*procfleet.Task) bool) (seen []procfleet.Task, next procfleet.TaskID, err error) {
	query := taskstore.TaskQuery{Before: page.Before, Limit: page.Limit}
	for range scanPages {
		tasks, err := a.store.Tasks(ctx, query)
		if err != nil {
			return nil, "", err
		}
		for i := range tasks {
			if !sees(&tasks[i]) {
				continue
			}
			if seen = append(seen, tasks[i]); len(seen) == page.Limit {
				return seen, tasks[i].ID, nil
			}
		}
		if len(tasks) < query.Limit {
			return seen, "", nil
		}
		last := &tasks[len(tasks)-1]
		query, next = taskstore.TaskQuery{Before: last.Number, Limit: scanPage}, last.ID
	}
	return seen, next, nil
}
