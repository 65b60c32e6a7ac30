package natsauth_test

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// TestAServerMayDoNothingElse attacks with the credentials of dispatchers and
// workers, which are one role.
func TestAServerMayDoNothingElse(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(s *site) {
		t := s.t
		server := s.as(natsauth.Server, 0)
		producer, agent := s.as(natsauth.Producer, 0), s.agent("10.0.0.1")
		for _, subject := range []string{
			">", "*.>", "_INBOX.>", "_INBOX.*.>", agent.NewInbox(), producer.NewInbox(), "_INBOX.producer.>", "_INBOX.system.>", "_INBOX.3.10-0-0-1.>",
			"$JS.>", "$JS.API.>", "$JS.ACK.>", "$JS.EVENT.>", "$SYS.>", "$SYS.ACCOUNT.>", "_R_.>", "$KV.>", "other",
		} {
			if _, err := server.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			server.isRefused("subscribing to " + subject)
			if _, err := server.QueueSubscribeSync(subject, "workers"); err != nil {
				t.Fatal(err)
			}
			server.isRefused("subscribing to " + subject + " in a queue group")
		}
		for _, subject := range []string{
			"$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.SERVER.X.RELOAD", "$SYS.REQ.ACCOUNT.X.CONNZ", "$JS.SNAPSHOT.ACK.X", "$JS.FC.X",
			"_R_.x", "$KV.x", "other",
		} {
			if err := server.PublishRequest(subject, server.NewInbox(), []byte("{}")); err != nil {
				t.Fatal(err)
			}
			server.isRefused("publishing to " + subject)
		}
	})
}

// A server can only remove a whole stream. JetStream prevents it from purging a stream, from deleting
// messages, and from permitting either.
func TestAServerRemovesNoSingleMessages(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(s *site) {
		t := s.t
		server, js := s.filled()
		before := s.streams(js)
		for name, info := range before {
			lenient := info.Config
			lenient.DenyPurge, lenient.DenyDelete, lenient.AllowRollup = false, false, true
			requests := map[string]any{
				"STREAM.PURGE." + name: struct{}{}, "STREAM.MSG.DELETE." + name: map[string]any{"seq": info.State.FirstSeq}, "STREAM.UPDATE." + name: lenient,
			}
			if name == bus.StreamSubmitTrials { // dispatchers purge their notes
				delete(requests, "STREAM.PURGE."+name)
			}
			for request, body := range requests {
				if code := s.request(server, request, body); code == 0 {
					t.Errorf("%s succeeds", request)
				}
			}
		}
		(&attacker{user: server}).judge(before, s.streams(js))
	})
}

// request sends a request to JetStream and returns the code of its error, 0 if it
// succeeds.
func (s *site) request(u *user, request string, body any) int {
	s.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := u.Request("$JS.API."+request, data, patience)
	if err != nil {
		s.t.Fatal(request, err)
	}
	var answer struct {
		Error struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer.Error.Code
}

// TestAServerReadsInboxesThroughAStream shows what SECURITY.md warns of: a role that
// may create streams may have any subject of its account stored, and read it. It does
// not reach the accounts of producers and of the system.
func TestAServerReadsInboxesThroughAStream(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(s *site) {
		t := s.t
		server, producer, monitor := s.as(natsauth.Server, 0), s.as(natsauth.Producer, 0), s.as(natsauth.Monitor, 0)
		agent := s.agent("10.0.0.1")
		js, err := bus.JetStream(server.Conn)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ATTACK", Subjects: []string{"_INBOX.3.>", "_INBOX.producer.>", "_INBOX.system.>"}})
		if err != nil {
			t.Fatal(err)
		}
		// Replies to these reach inboxes of the other accounts.
		for subject, u := range map[string]*user{"procfleet.submit": producer, "$SYS.REQ.SERVER.PING": monitor} {
			if _, err := u.Request(subject, nil, patience); err != nil {
				t.Fatal(subject, err)
			}
		}
		if err := agent.Publish(agent.NewInbox(), []byte("secret")); err != nil {
			t.Fatal(err)
		}
		agent.isAllowed("publishing to its inbox")
		if _, err := js.Publish(t.Context(), "_INBOX.3.last", nil); err != nil { // JetStream stores messages in order
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs != 2 {
			t.Errorf("the stream has %d messages, want those of the agent and the last one", info.State.Msgs)
		}
	})
}

// Headers that replace, expire or schedule messages must have no effect: no stream may permit them.
func TestAHeaderOfAPublisherRemovesNothing(t *testing.T) {
	t.Parallel()
	headers := []nats.Header{
		{"Nats-Rollup": {"all"}},
		{"Nats-Rollup": {"sub"}},
		{"Nats-TTL": {"1s"}},
		{"Nats-Incr": {"1"}},
		{"Nats-Batch-Id": {"x"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
		{"Nats-Schedule": {"@at 2030-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"procfleet.agent.3.10-0-0-2"}},
		{"Nats-Marker-Reason": {"Purge"}},
	}
	onEachBroker(t, func(s *site) {
		t := s.t
		server, js := s.filled()
		for _, a := range []attacker{
			{user: s.as(natsauth.Producer, 0), subjects: []string{"procfleet.submit"}, grows: []string{bus.StreamSubmit}},
			{user: s.agent("10.0.0.1"), subjects: ofAgent},
			{
				user: server, subjects: []string{"procfleet.submit", "procfleet.op.s.3", "procfleet.audit.refused", "procfleet.task.finished", "procfleet.hostevent.3"},
				grows: []string{bus.StreamSubmit, bus.StreamOps, bus.StreamAudit, bus.StreamEvents, bus.StreamHostEvents},
			},
		} {
			before := s.streams(js)
			for _, subject := range a.subjects {
				for _, header := range headers {
					if err := a.PublishMsg(&nats.Msg{Subject: subject, Header: header, Data: []byte("attack")}); err != nil {
						t.Fatal(err)
					}
				}
			}
			a.isAllowed("publishing with headers")
			s.settle(js)
			a.judge(before, s.streams(js))
		}
	})
}
