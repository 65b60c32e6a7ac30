package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	telemetry "github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestAnAgentBesideAnotherTakesNoCommandsUntilThatOneIsGone(t *testing.T) {
	t.Parallel()
	first, n := newHost(t)
	first.cfg.PresenceInterval = 500 * time.Millisecond
	announced := make(chan agentproto.Presence, 1000)
	first.answerPresence(0, func(p agentproto.Presence) { announced <- p })
	d := newDiary(t, n)
	first.start(nil)
	claim := (<-announced).Incarnation
	second := &host{t: t, conn: n.Conn, cfg: first.cfg, timed: true}
	second.cfg.Conn, second.cfg.DataDir = testenv.Connect(t, n.URL), t.TempDir()
	second.start(nil) // returns when any of the two is reachable
	for p := range announced {
		if p.Incarnation == claim {
			continue
		}
		// Its first announcement already names the other one.
		if p.Other == nil || p.Other.Incarnation != claim {
			t.Fatalf("announced %+v", p)
		}
		break
	}
	if e := d.next(); e.Kind != agentproto.EventTwoAgents || e.Details["incarnation"] != claim {
		t.Errorf("told %+v", e)
	}
	for i := range 10 {
		if r := first.command(first.starts("task", i)); r.Incarnation != claim {
			t.Fatalf("command %d was answered by %s, not by %s", i, r.Incarnation, claim)
		}
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second.waitReachable()
	if r := second.command(second.starts("after", 0)); r.Incarnation == claim || len(r.Items) != 1 {
		t.Errorf("answered %+v", r)
	}
}

// If a second agent replies on the host's subject, the agent publishes an event only if the reply is
// signed with the host's key. It counts unsigned replies.
func TestOfAnotherAgentThatNobodySignedNothingIsTold(t *testing.T) {
	t.Parallel()
	ring, stranger := testenv.NewRing(t), testenv.NewRing(t)
	registry, err := telemetry.New()
	if err != nil {
		t.Fatal(err)
	}
	h, n := newHost(t)
	h.cfg.PresenceInterval = 20 * time.Millisecond
	h.cfg.Keys = func() *fleetkey.Host { return ring.Host(h.cfg.host()) }
	h.cfg.Meter = registry.Meter("agent")
	d := newDiary(t, n)
	h.start(nil)
	// answer replies to every request that the agent does not receive itself.
	answer := func(instance string, sign func(nats.Header, *fleetkey.Message)) (stop func()) {
		t.Helper()
		sub, err := h.conn.QueueSubscribe(h.cfg.subject(), agentproto.AgentQueue, func(m *nats.Msg) {
			_, id, _ := agentproto.Peek(m.Data)
			data, err := agentproto.Encode(&agentproto.ResendReply{Header: newHeader(agentproto.TypeResendReply), Instance: instance})
			if err != nil {
				t.Error(err)
			}
			reply := &nats.Msg{Data: data, Header: nats.Header{}}
			sign(reply.Header, &fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: id, Body: data})
			_ = m.RespondMsg(reply) // the test may be over
		})
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = sub.Unsubscribe() } // as may be the connection
	}
	for reason, sign := range map[string]func(nats.Header, *fleetkey.Message){
		"unsigned": func(nats.Header, *fleetkey.Message) {},
		"forged":   func(to nats.Header, m *fleetkey.Message) { stranger.Host(h.cfg.host()).Sign(to, m) },
	} {
		stop := answer("forged", sign)
		testenv.Eventually(t, patience, func() bool {
			rec := httptest.NewRecorder()
			registry.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			return strings.Contains(rec.Body.String(), `procfleet_agent_messages_refused_total{reason="`+reason+`",type="resend_reply"}`)
		}, "what is "+reason+" is counted")
		stop()
	}
	defer answer("genuine", func(to nats.Header, m *fleetkey.Message) { ring.Host(h.cfg.host()).Sign(to, m) })()
	if e := d.next(); e.Kind != agentproto.EventTwoAgents || e.Details["instance"] != "genuine" {
		t.Errorf("told %+v", e)
	}
}
