package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"time"

	"github.com/procfleet/procfleet"
)

// TaskEventQuery selects events of tasks.
type TaskEventQuery struct {
	Business string           // "": of all businesses
	Task     procfleet.TaskID // "": of all tasks
	// After is the Position of the last event that the caller has processed; "" begins with the
	// next event.
	After string
}

// FollowedEvent is an event of a task with its position in the stream of events.
type FollowedEvent struct {
	TaskEvent
	Position string // for [TaskEventQuery].After
}

// FollowTasks yields the events of all tasks that the application may see, in the order of their
// arrival and those of a task without gaps: from their acceptance over holds, stages and
// cancels to their end. It reconnects and continues when the stream breaks or is idle. An event may
// be yielded again, with the same ID. FollowTasks ends after the first error, such as one with
// the code "expired" if the events after a position are no longer stored, the end of ctx, or the end
// of [Config.Patience].
func (c *Client) FollowTasks(ctx context.Context, q TaskEventQuery) iter.Seq2[FollowedEvent, error] {
	return func(yield func(FollowedEvent, error) bool) {
		f := &follower{c: c, query: q, yield: yield}
		if err := f.run(ctx); err != nil && !errors.Is(err, errEnded) {
			yield(FollowedEvent{}, err)
		}
	}
}

// follower is the state of one call of FollowTasks.
type follower struct {
	c         *Client
	query     TaskEventQuery
	yield     func(FollowedEvent, error) bool
	reconnect time.Duration // pause set by the server; zero if not set
}

func (f *follower) run(ctx context.Context) error {
	var o outage
	for {
		n := f.c.current.Load()
		received, err := f.stream(ctx, f.c.servers[n])
		switch {
		case errors.Is(err, errEnded):
			return nil
		case ctx.Err() != nil:
			return ended(ctx, nil)
		case !retryable(err):
			return err
		}
		f.c.selectNext(n)
		if !received {
			if err := f.c.pause(ctx, &o, err); err != nil {
				return err
			}
			continue
		}
		o = outage{}
		if err := sleep(ctx, jitter(cmp.Or(f.reconnect, reconnectAfter)), err); err != nil {
			return err
		}
	}
}

// stream reads events from one server until the connection ends, and reports whether it received
// any data.
func (f *follower) stream(ctx context.Context, server address) (received bool, err error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stream{watchdog: time.AfterFunc(firstDataTimeout, func() { cancel(errSilent) }), resumed: true}
	defer s.watchdog.Stop()
	if err := s.open(ctx, bounded, f.c, server, f.path(), f.query.After); err != nil {
		return false, err
	}
	defer s.body.Close()
	in := newEventReader(s)
	in.lastID = f.query.After
	for {
		e, err := in.next()
		f.query.After, f.reconnect = in.lastID, in.retry
		if err != nil {
			return s.begun, noAnswer(ctx, bounded, server, err)
		}
		event := FollowedEvent{Position: in.lastID}
		if err := json.Unmarshal(e.data, &event.TaskEvent); err != nil {
			return s.begun, fmt.Errorf("%w: event %q: %s", ErrBadResponse, e.name, excerpt(err.Error()))
		}
		if !f.yield(event, nil) {
			return s.begun, errEnded
		}
	}
}

func (f *follower) path() string {
	query := url.Values{}
	if f.query.Business != "" {
		query.Set("business", f.query.Business)
	}
	if f.query.Task != "" {
		query.Set("task", string(f.query.Task))
	}
	if len(query) == 0 {
		return "/v1/tasks/events"
	}
	return "/v1/tasks/events?" + query.Encode()
}
