package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
)

// TaskFeed reads the events of tasks.
type TaskFeed interface {
	TaskEventRange(ctx context.Context) (first, last uint64, err error)
	FollowTasks(ctx context.Context, after uint64, visit func(bus.TaskEvent) error) error
}

// maxFeeds is the maximum number of streams of the events of all tasks: each has a consumer in
// the broker and reads all events.
const maxFeeds = 64

func (*exchange) decodeFeed(_ context.Context, codec dialect.FollowTasks, in *dialect.Request) (dialect.TaskFeed, error) {
	return codec.Decode(in)
}

// feed is an open stream of the events of tasks.
type feed struct {
	position uint64 // of the last event that was read
	events   chan bus.TaskEvent
	over     chan struct{} // closed when no events follow
	cancel   context.CancelFunc
}

// feedOf opens a feed for a caller. Every caller may open one: it has the events of the tasks
// that the caller may see.
func (e *exchange) feedOf(ctx context.Context, q *dialect.TaskFeed) (*feed, error) {
	e.release() // release the body's memory before the long-running stream
	reader := e.api.cfg.TaskFeed
	if reader == nil {
		return nil, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read the events of tasks", RetryAfter: retryUnavailable}
	}
	first, last, err := reader.TaskEventRange(ctx)
	switch {
	case errors.Is(err, bus.ErrUnavailable):
		return nil, &dialect.Error{Kind: dialect.Unavailable, Problem: "the events of tasks cannot be read now; try again later", RetryAfter: retryUnavailable}
	case err != nil:
		return nil, fmt.Errorf("follow the events of tasks: %w", err)
	case q.After == nil:
		q.After = &last
	case *q.After+1 < first || *q.After > last:
		return nil, &dialect.Error{Kind: dialect.Expired, Field: "last_event_id", Problem: "the events after this one are no longer stored: list the tasks, then follow without last_event_id"}
	}
	if err := e.api.watches.enterFeed(); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(e.api.watches.life)
	f := &feed{position: *q.After, events: make(chan bus.TaskEvent), over: make(chan struct{}), cancel: cancel}
	go func() {
		defer e.api.watches.leaveFeed()
		defer close(f.over)
		err := reader.FollowTasks(life, *q.After, func(event bus.TaskEvent) error {
			select {
			case f.events <- event:
				return nil
			case <-life.Done():
				return context.Cause(life)
			}
		})
		if life.Err() == nil {
			e.log().WithError(err).Warn("stream of task events ended")
		}
	}()
	return f, nil
}

// followTasks streams events until the caller disconnects or may no longer read tasks.
func (e *exchange) followTasks(_ context.Context, codec dialect.FollowTasks, q *dialect.TaskFeed, f *feed) error {
	defer f.cancel()
	s := &stream{w: e.w, control: http.NewResponseController(e.w), timeout: e.api.cfg.Timeouts.Watcher}
	s.begin()
	defer s.endWith(e.api.watches.life)()
	err := s.send(fmt.Sprintf("id: %d\n", f.position)+streamBegin, nil)
	keepAlive := time.NewTicker(e.api.watches.timing.keepAlive)
	defer keepAlive.Stop()
	for err == nil {
		select {
		case event := <-f.events:
			f.position = event.Position
			err = e.sendEvent(s, codec, q, &event)
		case <-keepAlive.C:
			if !e.api.authenticator.StillReads(&e.who, &procfleet.Task{Application: e.who.Application}) {
				return nil // the client reconnects and receives the rejection
			}
			err = s.send(fmt.Sprintf("id: %d\n", f.position)+streamAlive, nil)
		case <-f.over:
			return nil // the client reconnects with the id of its last event
		case <-e.r.Context().Done():
			return nil
		}
	}
	return nil // the caller has disconnected
}

// sendEvent sends an event that the caller selects and may see.
func (e *exchange) sendEvent(s *stream, codec dialect.FollowTasks, q *dialect.TaskFeed, event *bus.TaskEvent) error {
	task := procfleet.Task{ID: event.Task, Application: event.Application, Business: event.Business}
	if q.Task != "" && q.Task != event.Task || q.Business != "" && q.Business != event.Business || !e.api.authenticator.StillReads(&e.who, &task) {
		return nil
	}
	text, err := codec.Encode(q, taskEvent(event), e.id).JSON()
	if err != nil {
		return err
	}
	return s.send(fmt.Sprintf("id: %d\nevent: %s\ndata: ", event.Position, event.Kind()), append(text, '\n'))
}

func taskEvent(event *bus.TaskEvent) v1.TaskEvent {
	t := v1.TaskEvent{
		ID: event.EventID(), Number: event.Number, Task: event.Task, Kind: event.Kind(), At: event.At,
		Application: event.Application, Business: event.Business, Actions: event.Actions, Items: event.Items, Reason: event.Reason,
	}
	if n := event.Transition; n != nil {
		t.Seq, t.Stage, t.Hold, t.Mode = n.Seq, n.Stage, n.Hold, n.Mode
	}
	if event.Event == audit.Finished {
		t.State, t.Counts = event.State, event.Counts
	}
	return t
}
