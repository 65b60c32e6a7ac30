package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

// refusing is the JetStream of a cluster that rejects the first publications, as it does while its replicas
// elect a leader.
type refusing struct {
	jetstream.JetStream
	err  *jetstream.APIError
	left int
}

func (r *refusing) PublishMsgAsync(msg *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if r.left == 0 {
		return r.JetStream.PublishMsgAsync(msg, opts...)
	}
	r.left--
	failed := make(chan error, 1)
	failed <- r.err
	return refused{msg, failed}, nil
}

type refused struct {
	msg    *nats.Msg
	failed chan error
}

func (r refused) Ok() <-chan *jetstream.PubAck { return nil }
func (r refused) Err() <-chan error            { return r.failed }
func (r refused) Msg() *nats.Msg               { return r.msg }

func TestAPublicationWaitsForAnEarlierOneThatTheReplicasHaveNotAgreedOn(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	busy := &jetstream.APIError{Code: 409, ErrorCode: 10158, Description: "duplicate message id is in process"}
	cluster := &refusing{JetStream: env.JS, err: busy, left: 3}
	b := bus.New(cluster)
	if got, err := b.PublishChunks(t.Context(), refs(2, procfleet.LaneSmall), "0"); err != nil || len(got) != 2 || got[0] == 0 || got[1] == 0 {
		t.Errorf("published at %v, %v", got, err)
	}
	cluster.left = 2
	if err := b.PublishFinished(t.Context(), &bus.TaskFinished{Event: "x/finished"})(); err != nil {
		t.Error(err)
	}
	if cluster.left = 1000; !errors.Is(b.PublishFinished(t.Context(), &bus.TaskFinished{Event: "y/finished"})(), bus.ErrUnavailable) {
		t.Error("a cluster that does not agree for long is not away")
	}
}

type withoutPeers struct{ jetstream.JetStream }

func (withoutPeers) Stream(context.Context, string) (jetstream.Stream, error) {
	return nil, jetstream.ErrStreamNotFound
}

func (withoutPeers) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, &jetstream.APIError{Code: 400, ErrorCode: 10005, Description: "no suitable peers for placement"}
}

func TestRolesWaitForTheServersOfAClusterThatAreNotUpYet(t *testing.T) {
	t.Parallel()
	js := withoutPeers{testenv.StartNATS(t).JS}
	if err := bus.Ensure(t.Context(), js, bus.Options{Replicas: 3}); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable, for which roles wait", err)
	}
}
