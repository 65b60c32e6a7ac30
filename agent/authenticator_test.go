package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// In TestAnswersThatNobodySignedAreNotBelieved a sender without the fleet key sends the agent a wrong
// time, with which the agent would accept expired commands or reject valid ones, and wrong freezes.
// The agent must reject both.
func TestAnswersThatNobodySignedAreNotBelieved(t *testing.T) {
	t.Parallel()
	ring := testenv.NewRing(t)
	h, _ := newHost(t)
	h.cfg.PresenceInterval = 50 * time.Millisecond
	h.cfg.Keys = func() *fleetkey.Host { return ring.Host(h.cfg.host()) }
	heard := make(chan agentproto.Presence, 1000)
	h.answerPresence(time.Hour, func(p agentproto.Presence) { heard <- p })
	w := h.answerSettings()
	w.set(frozen("forged"))
	h.start(nil)
	for range 3 { // it announces itself until it has verified a reply
		<-heard
	}
	testenv.Eventually(t, patience, func() bool { return w.questions() > 1 }, "it asks again what is frozen")

	command := h.starts("task", 0)
	data, err := agentproto.Encode(command)
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Subject: h.cfg.subject(), Header: nats.Header{}, Data: data}
	ring.Sign(msg.Header, h.cfg.host(), &fleetkey.Message{Purpose: agentproto.TypeCommand, Body: data})
	answer, err := h.conn.RequestMsg(msg, patience)
	if err != nil {
		t.Fatal(err)
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(answer.Data, agentproto.TypeReply, &reply); err != nil || !strings.Contains(reply.Message, "no worker replied") {
		t.Errorf("the time of an unsigned answer counts: %+v, %v", reply, err)
	}
	if settings, _ := h.engine.latest(); cmp.Equal(settings, frozen("forged")) {
		t.Error("what is frozen was told by nobody who may")
	}
}

// An agent must continue if no worker replies for a long time. Earlier the interval of announcements
// doubled each time without a limit; after a quarter of an hour it was negative, and the agent ended.
func TestAnAgentThatNoWorkerAnswersForLongGoesOn(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.PresenceInterval = 5 * time.Millisecond
	heard := make(chan struct{}, 1000)
	sub, err := h.conn.Subscribe(agentproto.PresenceSubject(0), func(m *nats.Msg) {
		_ = m.Respond([]byte("no answer"))
		heard <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	h.start(nil)
	for range 70 { // as many doublings as a duration has bits
		select {
		case <-heard:
		case <-time.After(patience):
			t.Fatal("it announces itself no more")
		}
	}
}
