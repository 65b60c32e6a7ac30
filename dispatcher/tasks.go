package dispatcher

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
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
	s.Submission, err = e.api.decode(ctx, s.key, codec.Decode, in)
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
	task, err := e.api.accept(ctx, &acceptance{
		call: e.call.Name, who: e.who, sub: sub, start: e.start, log: e.log(),
		terms: terms{key: s.key, label: codec.Label, origin: e.origin()},
	})
	if err != nil {
		return err
	}
	e.reply(codec.Encode(task.ID, e.id))
	return nil
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

func (e *exchange) listTasks(ctx context.Context, page *dialect.TaskPage, sees func(*procfleet.Task) bool) (dialect.Tasks, error) {
	tasks, next, err := e.api.visible(ctx, page, sees)
	return dialect.Tasks{Tasks: tasks, Next: next}, err
}

func (e *exchange) listResults(ctx context.Context, page *dialect.ResultPage, id procfleet.TaskID) (dialect.Results, error) {
	items, next, err := e.api.store.Results(ctx, id, taskstore.ResultQuery{State: page.State, Cursor: page.Cursor, Limit: page.Limit})
	if err != nil {
		return dialect.Results{}, about(id, err)
	}
	return dialect.Results{Items: items, Next: next}, nil
}

// about adds the task's id to an error.
func about(id procfleet.TaskID, err error) error { return fmt.Errorf("task %s: %w", id, err) }

// Queries is the part of a task store that queries use.
type Queries interface {
	taskstore.Queries
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
}

// allChunks returns the items of a task, one chunk at a time. The first chunk was
// already read. The timeout bounds the read of each other chunk.
func allChunks(ctx context.Context, store Queries, task *procfleet.Task, first []procfleet.ItemResult, timeout time.Duration) iter.Seq2[[]procfleet.ItemResult, error] {
	return func(yield func([]procfleet.ItemResult, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		rest := readAhead(ctx, store, task, timeout)
		defer func() {
			stop()
			for range rest { // wait for the reading goroutine to end
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
		if taken < task.Chunks { // ctx ended, so the result is incomplete
			yield(nil, fmt.Errorf("chunk %d of %d: %w", taken, task.Chunks, context.Cause(ctx)))
		}
	}
}

type chunkRead struct {
	items []procfleet.ItemResult
	err   error
}

// readAhead reads the chunks after the first, one ahead of the consumer, so that
// reading and encoding overlap. It closes the channel after the last chunk, after an
// error, or when ctx ends.
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
	// scanPage is the number of tasks read at once to find tasks that the caller may
	// read, and scanPages the maximum number of such reads for one page.
	scanPage  = 1000
	scanPages = 5
)

// visible returns a page of the tasks that the caller may read, and the id after which
// the next page begins; "" after the last page. If most tasks belong to other callers,
// a page may be short or empty although another page follows.
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
