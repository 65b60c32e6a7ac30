package dispatcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// submitted is a request to create a task, or to plan one.
type submitted struct {
	procfleet.Submission
	planned bool
	key     string // the caller's idempotency key
}

func (e *exchange) decodeSubmission(ctx context.Context, codec dialect.Accept, in *dialect.Request) (s submitted, err error) {
	if codec.Plan != nil {
		if s.planned, err = dialect.Planned(in); err != nil {
			return s, err
		}
	}
	if !s.planned { // a plan needs no key
		s.key = e.r.Header.Get(keyHeader)
	}
	s.Submission, err = e.api.decode(ctx, s.key, e.r.Header.Get, codec.Decode, in)
	return s, err
}

// authorizeSubmission requires permission for every action of the submission. A plan
// requires only the permission to read, because it shows no more than read-only calls
// about the business.
func (e *exchange) authorizeSubmission(_ context.Context, s *submitted) (*procfleet.Submission, error) {
	if s.planned {
		return &s.Submission, e.who.May(s.Business, apps.Reading)
	}
	return &s.Submission, e.who.MaySubmit(&s.Submission)
}

// accept creates a task, or returns the plan of the task.
func (e *exchange) accept(ctx context.Context, codec dialect.Accept, s *submitted, sub *procfleet.Submission) error {
	if s.planned {
		p, err := e.api.plan(ctx, sub)
		if err != nil {
			return err
		}
		e.reply(codec.Plan(p, e.id))
		return nil
	}
	task, err := e.submit(ctx, sub, terms{key: s.key, label: codec.Label})
	if err != nil {
		return err
	}
	e.reply(codec.Encode(task.ID, e.id))
	return nil
}

func (e *exchange) submit(ctx context.Context, sub *procfleet.Submission, t terms) (procfleet.Task, error) {
	t.origin = e.origin()
	return e.api.accept(ctx, &acceptance{call: e.call.Name, who: &e.who, terms: t, start: e.start, log: e.log()}, sub)
}

func (*exchange) decodeOutcomes(_ context.Context, codec dialect.Outcomes, in *dialect.Request) (procfleet.TaskID, error) {
	return codec.Decode(in)
}

// outcomes streams the results of all items of a task as one map.
func (e *exchange) outcomes(ctx context.Context, codec dialect.Outcomes, id *procfleet.TaskID, task *procfleet.Task) error {
	first, err := e.api.store.Chunk(ctx, *id, 0) // before the header, so that an unavailable store is an error response
	if err != nil {
		return about(*id, err)
	}
	// The query timeout bounds each read of the store, not the time in which the caller
	// reads the response.
	chunks := allChunks(e.r.Context(), e.api.store, task, first, e.api.cfg.Timeouts.Query)
	if err := e.stream(func(w io.Writer) error { return codec.Encode(w, e.id, chunks) }); err != nil {
		e.log().WithField("task", *id).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
	return nil
}

// stream writes a response of any size. After an error the caller of stream must close
// the connection: the response has begun, and only the lost connection shows that it is
// truncated.
func (e *exchange) stream(encode func(io.Writer) error) error {
	e.header(http.StatusOK)
	out := bufio.NewWriterSize(e.w, 64<<10)
	if err := encode(out); err != nil {
		return err
	}
	return out.Flush()
}

func (*exchange) showTask(_ context.Context, _ *procfleet.TaskID, task *procfleet.Task) (*procfleet.Task, error) {
	return task, nil
}

// listTasks returns a page of the tasks that the caller may read and the filter selects. If
// these are few, a page may be short or empty although another page follows.
func (e *exchange) listTasks(ctx context.Context, page *dialect.TaskPage, sees func(*procfleet.Task) bool) (found dialect.Tasks, err error) {
	query := taskstore.TaskQuery{Before: page.Before, Limit: page.Limit}
	chunks := scanChunks
	for range scanPages {
		tasks, err := e.api.store.Tasks(ctx, query)
		if err != nil {
			return dialect.Tasks{}, err
		}
		for i := range tasks {
			if chunks <= 0 {
				return found, nil
			}
			t := &tasks[i]
			found.Next = t.ID
			if !sees(t) || !page.Matches(t) {
				continue
			}
			if page.ItemFilter != (dialect.ItemFilter{}) {
				chunks -= t.Chunks
				if has, err := e.api.hasItem(ctx, t, &page.ItemFilter); err != nil {
					return dialect.Tasks{}, err
				} else if !has {
					continue
				}
			}
			if found.Tasks = append(found.Tasks, *t); len(found.Tasks) == page.Limit {
				return found, nil
			}
		}
		if len(tasks) < query.Limit {
			found.Next = ""
			return found, nil
		}
		query = taskstore.TaskQuery{Before: tasks[len(tasks)-1].Number, Limit: scanPage}
	}
	return found, nil
}

// hasItem reports whether the filter selects an item of the task.
func (a *api) hasItem(ctx context.Context, task *procfleet.Task, f *dialect.ItemFilter) (bool, error) {
	for it, err := range a.itemsOf(ctx, task) {
		if err != nil || f.MatchesItem(it) {
			return err == nil, err
		}
	}
	return false, nil
}

// itemsOf yields the items of a task chunk by chunk, none if the task has expired. It ends
// after the first error.
func (a *api) itemsOf(ctx context.Context, task *procfleet.Task) iter.Seq2[*procfleet.ItemResult, error] {
	return func(yield func(*procfleet.ItemResult, error) bool) {
		for chunk := range task.Chunks {
			items, err := a.store.Chunk(ctx, task.ID, chunk)
			switch {
			case errors.Is(err, taskstore.ErrNotFound):
				return
			case err != nil:
				yield(nil, about(task.ID, err))
				return
			}
			for i := range items {
				if !yield(&items[i], nil) {
					return
				}
			}
		}
	}
}

func (e *exchange) listResults(ctx context.Context, page *dialect.ResultPage, id procfleet.TaskID) (dialect.Results, error) {
	items, next, err := e.api.store.Results(ctx, id, taskstore.ResultQuery{State: page.State, Cursor: page.Cursor, Limit: page.Limit})
	if err != nil {
		return dialect.Results{}, about(id, err)
	}
	return dialect.Results{Items: items, Next: next}, nil
}

func about(id procfleet.TaskID, err error) error { return fmt.Errorf("task %s: %w", id, err) }

// allChunks returns the items of a task, one chunk at a time. The first chunk was
// already read. It reads one chunk ahead, so that reading and encoding overlap. The timeout
// bounds the read of each chunk.
func allChunks(ctx context.Context, store Store, task *procfleet.Task, first []procfleet.ItemResult, timeout time.Duration) iter.Seq2[[]procfleet.ItemResult, error] {
	type chunk struct {
		items []procfleet.ItemResult
		err   error
	}
	return func(yield func([]procfleet.ItemResult, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer stop()
		current, next := chunk{items: first}, make(chan chunk, 1)
		for i := 1; ; i++ {
			if i < task.Chunks && current.err == nil {
				reading.Go(func() {
					bounded, cancel := context.WithTimeout(ctx, timeout)
					defer cancel()
					items, err := store.Chunk(bounded, task.ID, i)
					next <- chunk{items, err}
				})
			}
			if !yield(current.items, current.err) || current.err != nil || i >= task.Chunks {
				return
			}
			current = <-next
		}
	}
}

const (
	// scanPage is the number of tasks read at once to find tasks that the caller may
	// read, and scanPages the maximum number of such reads for one page.
	scanPage  = 1000
	scanPages = 5
	// scanChunks is the number of chunks at which a page searches no further tasks for items.
	scanChunks = 1000
)
