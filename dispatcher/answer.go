package dispatcher

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sirupsen/logrus"

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

func (e *exchange) decodeSubmission(ctx context.Context, d dialect.Accept, in *dialect.Request) (s submitted, err error) {
	if d.Plan != nil {
		if s.planned, err = dialect.Planned(in); err != nil {
			return s, err
		}
	}
	if !s.planned { // a plan needs no key
		s.key = e.r.Header.Get(keyHeader)
	}
	s.Submission, err = e.api.decode(ctx, s.key, d.Decode, in)
	return s, err
}

// authorizeSubmission requires every action of the submission. A plan shows
// what reading calls about the business show as well, and requires what they do.
func (e *exchange) authorizeSubmission(_ context.Context, s *submitted) (*procfleet.Submission, error) {
	if s.planned {
		return &s.Submission, e.who.may(s.Business, apps.Reading)
	}
	return &s.Submission, e.who.maySubmit(&s.Submission)
}

// accept creates a task, or answers what it would do.
func (e *exchange) accept(ctx context.Context, d dialect.Accept, s *submitted, sub *procfleet.Submission) error {
	if s.planned {
		p, err := e.api.plan(ctx, sub)
		if err != nil {
			return err
		}
		e.reply(d.Plan(p, e.id))
		return nil
	}
	task, err := e.api.accept(ctx, &acceptance{
		call: e.call.Name, who: e.who, sub: *sub, start: e.start, log: e.log(),
		terms: terms{key: s.key, label: d.Label, origin: e.origin()},
	})
	if err != nil {
		return err
	}
	e.reply(d.Encode(task.ID, e.id))
	return nil
}

func decodeOutcomes(_ *exchange, _ context.Context, d dialect.Outcomes, in *dialect.Request) (procfleet.TaskID, error) {
	return d.Decode(in)
}

// outcomes streams the result map of a task.
func (e *exchange) outcomes(ctx context.Context, d dialect.Outcomes, id *procfleet.TaskID, task *procfleet.Task) error {
	first, err := e.api.store.Chunk(ctx, *id, 0) // now, so that an unavailable store is still answered as such
	if err != nil {
		return about(*id, err)
	}
	// The query timeout bounds each read of the store, not how long the caller takes to read.
	chunks := allChunks(e.r.Context(), e.api.store, task, first, e.api.cfg.Timeouts.Query)
	e.stream(logrus.Fields{"task": *id}, func(w io.Writer) error { return d.Encode(w, e.id, chunks) })
	return nil
}

// stream writes a response of any size. An error after the first byte can only
// be reported by closing the connection.
func (e *exchange) stream(fields logrus.Fields, encode func(io.Writer) error) {
	e.header(http.StatusOK)
	out := bufio.NewWriterSize(e.w, 64<<10)
	err := encode(out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		e.log().WithFields(fields).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
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
