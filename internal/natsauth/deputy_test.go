package natsauth_test

import (
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/testenv"
)

// TestAStreamIsNotPurgedByItsOwnAcknowledgement: who publishes to a stream
// says where JetStream acknowledges it, and JetStream may publish anywhere.
func TestAStreamIsNotPurgedByItsOwnAcknowledgement(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	agent := s.agent("10.0.0.1")
	for _, api := range []string{"$JS.API.STREAM.PURGE.PROCFLEET_RESULTS", "$JS.API.STREAM.DELETE.PROCFLEET_RESULTS"} {
		if err := agent.PublishRequest(agentproto.ResultSubject("s", 3), api, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	agent.isAllowed("publishing a result")
	js, err := natsconn.JetStream(s.as(natsauth.Server, 0).Conn)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		stream, err := js.Stream(t.Context(), bus.StreamResults)
		return err == nil && stream.CachedInfo().State.LastSeq == 2
	}, "both messages are in the stream")
	// By the time this one is acknowledged, so are the others.
	if _, err := js.Publish(t.Context(), agentproto.ResultSubject("s", 3), []byte("x")); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), bus.StreamResults)
	if err != nil || stream.CachedInfo().State.Msgs != 3 {
		t.Errorf("%+v, %v", stream, err)
	}
}
