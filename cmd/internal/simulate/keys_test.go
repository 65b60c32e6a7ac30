package simulate_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestSimulatedAgentsIgnoredAReplacedFleetKey(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	var ring atomic.Pointer[fleetkey.Ring]
	ring.Store(testenv.NewRing(t))
	startWith(t, simulate.Config{Agents: 3, Cloud: cloud, URL: env.URL, Keys: ring.Load})
	for range 2 {
		c := command(1, 1, agentproto.ActionStatus)
		body := encode(t, c)
		msg := &nats.Msg{Subject: agentproto.AgentSubject(cloud, address(1)), Header: nats.Header{}, Data: body}
		ring.Load().Sign(msg.Header, host(1), &fleetkey.Message{Purpose: agentproto.TypeCommand, Body: body})
		reply, err := env.Conn.RequestMsg(msg, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var accepted agentproto.Reply
		if err := agentproto.Decode(reply.Data, agentproto.TypeReply, &accepted); err != nil || accepted.Refused != "" {
			t.Fatalf("reply %+v, %v", accepted, err)
		}
		message := fleetkey.Message{Purpose: agentproto.TypeReply, Answers: c.ID, Body: reply.Data}
		if err := ring.Load().Verify(reply.Header, host(1), &message); err != nil {
			t.Error(err)
		}
		ring.Store(testenv.NewRing(t)) // the keys are replaced
	}
}
