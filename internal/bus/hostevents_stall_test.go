package bus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

// stalling is a JetStream whose consumers deliver two messages each and then nothing.
type stalling struct{ jetstream.JetStream }

func (s stalling) CreateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := s.JetStream.CreateConsumer(ctx, stream, cfg)
	return &stallingConsumer{Consumer: c}, err
}

type stallingConsumer struct {
	jetstream.Consumer
	stalls bool
}

func (c *stallingConsumer) Fetch(n int, opts ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	if c.stalls {
		return emptyBatch{}, nil
	}
	c.stalls = true
	return c.Consumer.Fetch(min(n, 2), opts...)
}

type emptyBatch struct{}

func (emptyBatch) Error() error { return nil }

func (emptyBatch) Messages() <-chan jetstream.Msg {
	none := make(chan jetstream.Msg)
	close(none)
	return none
}

// A page must end before events that were not delivered: a client that follows events continues after
// the page, and would never receive them.
func TestEventsThatDidNotComeDoNotCountAsRead(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	b := bus.New(stalling{env.JS})
	for _, message := range []string{"a", "b", "c"} {
		tell(t, env.JS, agentproto.Event{Host: "0:10.0.0.1", Kind: "restarted", Message: message})
	}
	for _, q := range []bus.HostEventQuery{{Limit: 10}, {Newest: true, Limit: 10}} {
		if page, err := b.HostEvents(t.Context(), q); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("%+v: read %+v, error %v", q, page, err)
		}
	}
	if got := messages(readEvents(t, b, bus.HostEventQuery{Limit: 2})); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("those that came: %v", got)
	}
}

// The size of a page with the newest events is limited. The page ends with the last event and has no gaps.
func TestThePageOfTheNewestIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	const all = 300
	long := map[string]any{"output": strings.Repeat("x", 60_000)}
	for range all {
		tell(t, env.JS, agentproto.Event{Host: "0:10.0.0.1", Kind: "restarted", Details: long})
	}
	page := readEvents(t, env.Bus, bus.HostEventQuery{Newest: true, Limit: 1000})
	n := len(page.Events)
	if n == 0 || n*60_000 > 8<<20 || page.Events[n-1].Sequence != all || page.Events[0].Sequence != uint64(all-n+1) {
		t.Errorf("a page of %d events, of the last %d", n, all)
	}
}
