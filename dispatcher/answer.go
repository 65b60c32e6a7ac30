package dispatcher

import (
	"bufio"
	"context"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// accept makes a task of the request.
func (e *exchange) accept(ctx context.Context, use dialect.Accept, in *dialect.Request) error {
	if use.Plan != nil {
		switch planned, err := dialect.Planned(in); {
		case err != nil:
			return err
		case planned:
			return e.plan(ctx, use, in)
		}
	}
	task, err := e.api.accept(ctx, &acceptance{
		call: e.call.Name, who: e.who, decode: use.Decode, in: in, origin: e.origin(), start: e.start, log: e.log(),
		terms: terms{key: e.r.Header.Get(keyHeader), label: use.Label},
	})
	if err != nil {
		return err
	}
	e.reply(use.Encode(task.ID, e.id))
	return nil
}

// outcomes answers with a whole result map, written as it is read. What fails
// after the beginning can only be told by cutting the connection.
func (e *exchange) outcomes(use dialect.Outcomes, in *dialect.Request) error {
	id, err := use.Decode(in)
	if err != nil {
		return err
	}
	// How long a caller takes to read is not for the store's patience to bound.
	chunks, err := outcomes(e.r.Context(), e.api.store, id, e.who.mayRead, e.api.cfg.Timeouts.Query)
	if err != nil {
		return about(id, err)
	}
	e.header(http.StatusOK)
	out := bufio.NewWriterSize(e.w, 64<<10)
	err = use.Encode(out, e.id, chunks)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		e.log().WithField("task", id).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (e *exchange) showTask(ctx context.Context, use dialect.ShowTask, in *dialect.Request) error {
	id, err := use.Decode(in)
	if err != nil {
		return err
	}
	task, err := e.api.store.Task(ctx, id)
	if err != nil {
		return about(id, err)
	}
	if err := e.who.mayRead(&task); err != nil {
		return err
	}
	e.reply(use.Encode(&task))
	return nil
}

func (e *exchange) listTasks(ctx context.Context, use dialect.ListTasks, in *dialect.Request) error {
	page, err := use.Decode(in)
	if err != nil {
		return err
	}
	tasks, next, err := e.api.visible(ctx, page, &e.who)
	if err != nil {
		return err
	}
	e.reply(use.Encode(tasks, next))
	return nil
}

func (e *exchange) listResults(ctx context.Context, use dialect.ListResults, in *dialect.Request) error {
	page, err := use.Decode(in)
	if err != nil {
		return err
	}
	if e.who.app != nil {
		task, err := e.api.store.Task(ctx, page.Task)
		if err == nil {
			err = e.who.mayRead(&task)
		}
		if err != nil {
			return about(page.Task, err)
		}
	}
	items, next, err := e.api.store.Results(ctx, page.Task, taskstore.ResultQuery{
		State: page.State, Cursor: page.Cursor, Limit: page.Limit,
	})
	if err != nil {
		return about(page.Task, err)
	}
	e.reply(use.Encode(items, next))
	return nil
}

func (e *exchange) listHosts(ctx context.Context, use dialect.ListHosts, in *dialect.Request) error {
	page, err := use.Decode(in)
	if err != nil {
		return err
	}
	if err := e.who.may("", apps.Reading); err != nil {
		return err
	}
	found, err := e.api.store.HostPage(ctx, page.After, page.Limit)
	if err != nil {
		return err
	}
	agents := make([]v1.Agent, 0, len(found))
	for i := range found {
		agents = append(agents, agentOf(&found[i]))
	}
	e.reply(use.Encode(page, agents))
	return nil
}

func agentOf(p *taskstore.Presence) v1.Agent {
	return v1.Agent{
		Host: p.Host, AgentID: p.AgentID, Instance: p.Instance, Version: p.Version, OS: p.OS, Arch: p.Arch,
		StartedAt: p.StartedAt, SeenAt: p.SeenAt, Supervised: p.Supervised, CPU: p.CPU, Memory: p.Memory, Conflict: p.Conflict,
	}
}

// about adds the task to an error of the store.
func about(id procfleet.TaskID, err error) error { return fmt.Errorf("task %s: %w", id, err) }
