package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
)

// TaskEvent is an event of [StreamEvents]: of the acceptance of a task, with the number 1, of a
// transition, or of the end.
type TaskEvent struct {
	Position uint64 // sequence in the stream
	audit.Record
	// Transition is the event of a transition; nil for the others.
	Transition *TaskTransition
}

// TaskEventRange returns the positions of the first and of the last stored event. Without an
// event first is last+1.
func (b *Bus) TaskEventRange(ctx context.Context) (first, last uint64, err error) {
	stream, err := b.js.Stream(ctx, StreamEvents)
	if err != nil {
		return 0, 0, publishError("read events of tasks", err)
	}
	state := stream.CachedInfo().State
	return max(state.FirstSeq, 1), state.LastSeq, nil
}

// ErrDropped means that the stream has dropped the next event.
var ErrDropped = errors.New("bus: the stream has dropped events that were not read")

// FollowTasks calls visit with each event after a position, in the order of arrival, until ctx
// ends or visit returns an error. It returns [ErrDropped] if the stream has dropped the next one.
func (b *Bus) FollowTasks(ctx context.Context, after uint64, visit func(TaskEvent) error) error {
	consumer, err := b.js.OrderedConsumer(ctx, StreamEvents, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1, InactiveThreshold: feedInactive,
	})
	if err != nil {
		return publishError("read events of tasks", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return publishError("read events of tasks", err)
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return publishError("read events of tasks", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return publishError("read events of tasks", err)
		}
		if after++; meta.Sequence.Stream != after {
			return ErrDropped
		}
		if e, is := readTaskEvent(msg.Subject(), msg.Data()); is {
			e.Position = after
			if err := visit(e); err != nil {
				return err
			}
		}
	}
}

// feedInactive is the time after which the broker removes the consumer of a reader that is gone.
const feedInactive = time.Minute

// readTaskEvent parses an event. It returns false for one that is not understood.
func readTaskEvent(subject string, data []byte) (e TaskEvent, is bool) {
	switch subject {
	case subjectAccepted, subjectRejected:
		is = json.Unmarshal(data, &e.Record) == nil
		if e.Event == audit.Accepted {
			e.Number = 1
		}
	case SubjectFinished:
		var f TaskFinished
		if is = json.Unmarshal(data, &f) == nil; is {
			e.Record = f.record()
		}
	default:
		var t TaskTransition
		if is = json.Unmarshal(data, &t) == nil; is {
			e.Record, e.Transition = t.Record(), &t
		}
	}
	return e, is && e.Task != "" && e.Number > 0
}

// Kind returns "accepted", the kind of a transition, "finished" or "rejected".
func (e *TaskEvent) Kind() string {
	switch {
	case e.Transition != nil:
		return string(e.Transition.Kind)
	case e.State == procfleet.TaskRejected:
		return string(e.State)
	}
	return string(e.Event)
}

// EventID returns the id of the event: the task and its number among the events of the task.
func (e *TaskEvent) EventID() string { return fmt.Sprintf("%s/%d", e.Task, e.Number) }
