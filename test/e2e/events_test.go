//go:build linux

package e2e

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// finishedSubject is the subject of finished events.
const finishedSubject = "procfleet.task.finished"

// waitFinishedEvent waits until the stream contains the finished event of a task.
func (f *fleet) waitFinishedEvent(id string) {
	f.t.Helper()
	nc, err := nats.Connect(f.broker.URL, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	testenv.Eventually(f.t, finishTimeout, func() bool { return finishedEvents(f.t, nc)[id] > 0 }, "the finished event of "+id+" is published")
}

// finishedEvents counts the stored finished events by task.
func finishedEvents(t *testing.T, nc *nats.Conn) map[string]int {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.StreamNameBySubject(t.Context(), finishedSubject)
	if err != nil {
		return nil
	}
	consumer, err := js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{finishedSubject}})
	if err != nil {
		return nil
	}
	batch, err := consumer.FetchNoWait(10_000)
	if err != nil {
		return nil
	}
	counts := map[string]int{}
	for msg := range batch.Messages() {
		var event struct{ Task string }
		if json.Unmarshal(msg.Data(), &event) == nil {
			counts[event.Task]++
		}
	}
	return counts
}
