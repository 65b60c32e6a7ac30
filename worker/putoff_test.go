package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// oftenDelivered is a message of results that came more often than any may
// that cannot be stored.
type oftenDelivered struct {
	jetstream.Msg
	data    []byte
	dropped bool
}

func (m *oftenDelivered) Data() []byte         { return m.data }
func (m *oftenDelivered) Headers() nats.Header { return nil }
func (m *oftenDelivered) Subject() string      { return agentproto.ResultSubject("s", 0) }
func (m *oftenDelivered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: maxDeliveries + 1}, nil
}
func (m *oftenDelivered) NakWithDelay(time.Duration) error { return nil }
func (m *oftenDelivered) TermWithReason(string) error {
	m.dropped = true
	return nil
}

// goingAway refuses one batch, is away then, and has the worker stop.
type goingAway struct {
	Store
	stop  func()
	asked bool
}

func (s *goingAway) Record(context.Context, []taskstore.Batch) ([]taskstore.Recorded, error) {
	if !s.asked {
		s.asked = true
		return nil, errors.New("a batch that cannot be stored")
	}
	s.stop()
	return nil, taskstore.ErrUnavailable
}

func TestResultsAreNotDroppedBecauseTheStoreWentAwayAndTheWorkerStops(t *testing.T) {
	t.Parallel()
	data, err := agentproto.Encode(&agentproto.Results{
		Header: agentproto.Header{Type: agentproto.TypeResults}, Task: string(procfleet.Number(1).TaskID()), Host: "0:10.0.0.1",
		Results: []agentproto.Result{{Item: 0}},
	})
	if err != nil {
		t.Fatal(err)
	}
	msg := &oftenDelivered{data: data}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log, _ := test.NewNullLogger()
	timing := Timing{}.withDefaults()
	c := &collector{
		recorder: &recorder{store: &goingAway{stop: stop}, timing: &timing},
		believer: &believer{keys: func() *fleetkey.Ring { return nil }},
		held:     newHeld(), timing: &timing, reached: func(string) {}, log: log,
	}
	if err := c.collect(ctx, []jetstream.Msg{msg}); err == nil {
		t.Error("results were collected that the store did not take")
	}
	if msg.dropped {
		t.Error("results were dropped that the store was not there to take")
	}
}
