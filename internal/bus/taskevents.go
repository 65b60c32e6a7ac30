package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Subjects of [StreamEvents] end with the kind of the event:
//
//	procfleet.task.accepted   an audit record
//	procfleet.task.held       a [TaskTransition], as of the other kinds of transitions
//	procfleet.task.finished   a [TaskFinished]
//	procfleet.task.rejected   an audit record
const (
	taskPrefix = "procfleet.task."
	tasksAll   = taskPrefix + ">"
	// SubjectFinished is the subject of [TaskFinished] events.
	SubjectFinished = taskPrefix + "finished"
	subjectRejected = taskPrefix + "rejected"
	subjectAccepted = taskPrefix + "accepted"
)

// TaskFinished is the event and the audit record for the end of a task. Consumers
// may receive duplicates with the same Event. Producers of submissions may
// subscribe to it, so it contains no user and no address.
type TaskFinished struct {
	Event string `json:"event"` // "<task>/finished"
	// Number is that of the event among those of the task: one more than that of the last
	// transition.
	Number      int                     `json:"number"`
	Task        procfleet.TaskID        `json:"task"`
	State       procfleet.TaskState     `json:"state"`
	Counts      map[procfleet.State]int `json:"counts"`
	CreatedAt   time.Time               `json:"created_at"`
	FinishedAt  time.Time               `json:"finished_at,omitzero"`
	Dialect     string                  `json:"dialect,omitempty"`
	Application string                  `json:"application,omitempty"`
	Business    string                  `json:"business,omitempty"`
	Actions     []procfleet.Action      `json:"actions"`
	Items       int                     `json:"items"` // number of items, each one process on one host
}

// FinishedEvent returns the event for a finished or rejected task.
func FinishedEvent(t procfleet.Task) TaskFinished {
	return TaskFinished{
		Event: string(t.ID) + "/finished", Number: t.Transitions + 2, Task: t.ID, State: t.State, Counts: t.Counts,
		CreatedAt: t.CreatedAt, FinishedAt: t.FinishedAt,
		Dialect: t.Dialect, Application: t.Application, Business: t.Business,
		Actions: t.Actions, Items: t.Items,
	}
}

// record returns the audit record in the event.
func (e *TaskFinished) record() audit.Record {
	return audit.Record{
		ID: e.Event, Event: audit.Finished, At: e.FinishedAt,
		Call: e.Dialect, Application: e.Application, Business: e.Business,
		Task: e.Task, Actions: e.Actions, Items: e.Items, Number: e.Number,
		State: e.State, Counts: audit.NonZero(e.Counts), AcceptedAt: e.CreatedAt,
	}
}

// PublishFinished publishes the event asynchronously. The caller must call wait
// once; it blocks until the stream acknowledges, and returns any error.
func (b *Bus) PublishFinished(ctx context.Context, e *TaskFinished) (wait func() error) {
	return b.publishEvent(ctx, SubjectFinished, e.Event, e.Event, e)
}

// TaskTransition is the event of a [procfleet.Transition]. Consumers may receive duplicates with
// the same Event. The subject ends with the kind.
type TaskTransition struct {
	Event  string           `json:"event"` // "<task>/<number>"
	Number int              `json:"number"`
	Task   procfleet.TaskID `json:"task"`

	Kind   procfleet.TransitionKind `json:"kind"`
	At     time.Time                `json:"at"`
	Seq    int                      `json:"seq"`
	Stage  int                      `json:"stage,omitempty"` // from 1
	Hold   procfleet.HoldKind       `json:"hold,omitempty"`
	Mode   procfleet.CancelMode     `json:"mode,omitempty"`
	Reason string                   `json:"reason,omitempty"`

	Dialect     string             `json:"dialect,omitempty"`
	Application string             `json:"application,omitempty"`
	Business    string             `json:"business,omitempty"`
	Actions     []procfleet.Action `json:"actions"`
	Items       int                `json:"items"`
}

// TransitionEvent returns the event of transition n of a task, from 1. The acceptance of the
// task has the number 1, so the event has the number n+1.
func TransitionEvent(task *procfleet.Task, n int, t *procfleet.Transition) TaskTransition {
	e := TaskTransition{
		Event: string(task.ID) + "/" + strconv.Itoa(n+1), Number: n + 1, Task: task.ID,
		Kind: t.Kind, At: t.At, Seq: t.Seq, Hold: t.Hold, Mode: t.Mode, Reason: t.Reason,
		Dialect: task.Dialect, Application: task.Application, Business: task.Business, Actions: task.Actions, Items: task.Items,
	}
	if task.Rollout != nil {
		e.Stage = t.Stage + 1
	}
	return e
}

// Record returns the audit record in the event.
func (e *TaskTransition) Record() audit.Record {
	words := []string{string(e.Kind)}
	for _, word := range []string{string(e.Hold), string(e.Mode)} {
		if word != "" {
			words = append(words, word)
		}
	}
	if e.Kind == procfleet.TransitionStage {
		words = append(words, strconv.Itoa(e.Stage))
	}
	return audit.Record{
		ID: e.Event, Event: audit.Transition, At: e.At, Call: e.Dialect, Application: e.Application, Business: e.Business,
		Task: e.Task, Actions: e.Actions, Items: e.Items, Number: e.Number, Change: strings.Join(words, " "), Reason: e.Reason,
	}
}

// PublishTransition publishes the event, and waits for its acknowledgement. Publish the
// transitions of a task in their order, each after the one before it is acknowledged.
func (b *Bus) PublishTransition(ctx context.Context, e *TaskTransition) error {
	// A fail-over of the store may lose a transition whose event is published. The next one
	// then has its number, and the stream must not drop it as a duplicate.
	id := fmt.Sprintf("%s/%d", e.Event, e.At.UnixMicro())
	return b.publishEvent(ctx, taskPrefix+string(e.Kind), e.Event, id, e)()
}

// publishEvent publishes an event with a name, for errors, and a message id asynchronously.
func (b *Bus) publishEvent(ctx context.Context, subject, name, id string, event any) (wait func() error) {
	fail := func(err error) error {
		if err == nil {
			return nil
		}
		return publishError("publish event "+name, err)
	}
	data, err := json.Marshal(event)
	if err != nil {
		return func() error { return fail(err) }
	}
	msg := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
	msg.Header.Set(jetstream.MsgIDHeader, id)
	tracecontext.Inject(ctx, msg.Header)
	future, err := b.js.PublishMsgAsync(msg)
	if err != nil {
		return func() error { return fail(err) }
	}
	return func() error {
		_, err := b.acknowledged(ctx, future)
		return fail(err)
	}
}
