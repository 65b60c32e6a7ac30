package dispatcher

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
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

// authorizeSubmission requires every action of the submission. A plan shows
// what reading calls about the business show as well, and requires what they do.
func (e *exchange) authorizeSubmission(_ context.Context, s *submitted) (*procfleet.Submission, error) {
	if s.planned {
		return &s.Submission, e.who.May(s.Business, apps.Reading)
	}
	return &s.Submission, e.who.MaySubmit(&s.Submission)
}

// accept creates a task, or answers what it would do.
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
		call: e.call.Name, who: e.who, sub: *sub, start: e.start, log: e.log(),
		terms: terms{key: s.key, label: codec.Label, origin: e.origin()},
	})
	if err != nil {
		return err
	}
	e.reply(codec.Encode(task.ID, e.id))
	return nil
}

func decodeOutcomes(_ *exchange, _ context.Context, codec dialect.Outcomes, in *dialect.Request) (procfleet.TaskID, error) {
	return codec.Decode(in)
}

// outcomes streams the result map of a task.
func (e *exchange) outcomes(ctx context.Context, codec dialect.Outcomes, id *procfleet.TaskID, task *procfleet.Task) error {
	first, err := e.api.store.Chunk(ctx, *id, 0) // now, so that an unavailable store is still answered as such
	if err != nil {
		return about(*id, err)
	}
	// The query timeout bounds each read of the store, not how long the caller takes to read.
	chunks := allChunks(e.r.Context(), e.api.store, task, first, e.api.cfg.Timeouts.Query)
	if err := e.stream(func(w io.Writer) error { return codec.Encode(w, e.id, chunks) }); err != nil {
		e.log().WithField("task", *id).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
	return nil
}

// stream writes a response of any size. After an error the connection must be
// closed: nothing else tells the caller that the response is truncated.
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

func (e *exchange) listHosts(ctx context.Context, page *dialect.HostPage, _ string) ([]v1.Agent, error) {
	found, err := e.api.store.HostPage(ctx, page.After, page.Limit)
	if err != nil {
		return nil, err
	}
	agents := make([]v1.Agent, 0, len(found))
	for i := range found {
		agents = append(agents, agentOf(&found[i]))
	}
	return agents, nil
}

func agentOf(p *taskstore.Presence) v1.Agent {
	return v1.Agent{
		Host: p.Host, AgentID: p.AgentID, Instance: p.Instance, Version: p.Version, OS: p.OS, Arch: p.Arch,
		StartedAt: p.StartedAt, SeenAt: p.SeenAt, Supervised: p.Supervised, CPU: p.CPU, Memory: p.Memory, Conflict: p.Conflict,
	}
}

// about adds the task to an error of the store.
func about(id procfleet.TaskID, err error) error { return fmt.Errorf("task %s: %w", id, err) }
