package bus

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
)

// holdSubject is the subject of the hints that a task was paused. No stream captures it.
const holdSubject = "procfleet.hold"

// Hold notifies all workers that a task was paused, so that they stop its delivery at
// once. It only appends to the connection's buffer. The hint may be lost: workers also
// read the task store before they extend a delivery.
func (b *Bus) Hold(id procfleet.TaskID) error {
	if err := b.js.Conn().Publish(holdSubject, []byte(id)); err != nil {
		return publishError("hint of a pause", err)
	}
	return nil
}

// FollowHolds calls held for every hint of [Bus.Hold], one at a time. With a group, only one
// member of the group receives a hint. The caller must call stop once.
func (b *Bus) FollowHolds(group string, held func(procfleet.TaskID)) (stop func(), err error) {
	sub, err := b.js.Conn().QueueSubscribe(holdSubject, group, func(msg *nats.Msg) { held(procfleet.TaskID(msg.Data)) })
	if err != nil {
		return nil, fmt.Errorf("follow pauses of tasks: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only on a closed connection
}
