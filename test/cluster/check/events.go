package check

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

// TaskEvents returns a function for [Config.Events] that reads all events of tasks from the
// broker.
func TaskEvents(nc *nats.Conn) func(ctx context.Context) ([][]byte, error) {
	return func(ctx context.Context) ([][]byte, error) {
		const patience = 30 * time.Second
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, err
		}
		// A server that was just killed may not reply: the caller repeats.
		opening, opened := context.WithTimeout(ctx, 5*time.Second)
		defer opened()
		consumer, err := js.OrderedConsumer(opening, "PROCFLEET_EVENTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"procfleet.task.>"}})
		if err != nil {
			return nil, fmt.Errorf("consume the events: %w", err)
		}
		info, err := consumer.Info(opening)
		if err != nil {
			return nil, fmt.Errorf("count the events: %w", err)
		}
		messages, err := consumer.Messages()
		if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		defer messages.Stop()
		var events [][]byte
		for range info.NumPending {
			msg, err := messages.Next(jetstream.NextContext(ctx))
			if err != nil {
				return nil, fmt.Errorf("read event %d of %d: %w", len(events)+1, info.NumPending, err)
			}
			events = append(events, msg.Data())
		}
		return events, nil
	}
}

// readEvents replaces the events in the history by all events of the broker.
func (l *Load) readEvents(ctx context.Context) error {
	if l.cfg.Events == nil {
		return nil
	}
	var events [][]byte
	err := l.persist(ctx, func() (err error) {
		events, err = l.cfg.Events(ctx)
		return err
	})
	if err != nil {
		return err
	}
	ends, numbers := []Notification{}, map[procfleet.TaskID][]int{}
	for _, e := range events {
		body, err := readNotification(bytes.NewReader(e))
		if err != nil {
			return fmt.Errorf("event %q: %w", e, err)
		}
		if body.Number > 0 {
			numbers[body.Task] = append(numbers[body.Task], body.Number)
		}
		if body.State == procfleet.TaskFinished {
			ends = append(ends, Notification{Event: body.Event, Task: body.Task, State: body.State, Counts: body.Counts})
		}
	}
	l.log.edit(func(h *History) { h.Events, h.Numbers = ends, numbers })
	return nil
}
