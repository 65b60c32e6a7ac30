package natsauth_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/testenv"
)

// leafNode speaks the protocol of leaf nodes with the credentials of one area. A
// nats-server would apply the rights that the broker announces to it; a leaf
// node that was taken over does not.
type leafNode struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// asLeaf connects as the leaf node of cloud area 3. A leaf node may declare itself
// the hub, for which the broker has other checks.
func (s *site) asLeaf(hub bool) *leafNode {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.leaves)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	l := &leafNode{s.t, conn, bufio.NewReader(conn)}
	line, err := l.line()
	if err != nil {
		s.t.Fatal(err)
	}
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		s.t.Fatal(line, err)
	}
	connect, err := json.Marshal(s.leafConnect(info.Nonce, hub))
	if err != nil {
		s.t.Fatal(err)
	}
	l.write("CONNECT " + string(connect) + "\r\n")
	if _, err := l.flush(); err != nil {
		s.t.Fatal("a leaf node cannot connect:", err)
	}
	return l
}

func (s *site) leafConnect(nonce string, hub bool) map[string]any {
	s.t.Helper()
	credentials, err := s.authority.NewUser(natsauth.Leaf, "area", 3, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := jwt.ParseDecoratedJWT([]byte(credentials))
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := jwt.ParseDecoratedUserNKey([]byte(credentials))
	if err != nil {
		s.t.Fatal(err)
	}
	signature, err := key.Sign([]byte(nonce))
	if err != nil {
		s.t.Fatal(err)
	}
	return map[string]any{
		"jwt": token, "sig": base64.RawURLEncoding.EncodeToString(signature), "is_hub": hub,
		"server_id": "attacker", "name": "attacker", "version": "2.12.7", "headers": true, "jetstream": true, "protocol": 4,
	}
}

func (l *leafNode) write(text string) {
	// The broker ends a connection after a forbidden operation.
	_, _ = io.WriteString(l.conn, text)
}

func (l *leafNode) line() (string, error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	line, err := l.in.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// flush waits until the broker has processed everything that was sent, and returns the messages that the
// broker has sent meanwhile, or its error.
func (l *leafNode) flush() (messages []string, err error) {
	l.write("PING\r\n")
	for {
		line, err := l.line()
		if err != nil {
			return messages, err
		}
		switch verb, rest, _ := strings.Cut(line, " "); verb {
		case "PONG":
			return messages, nil
		case "PING":
			l.write("PONG\r\n")
		case "-ERR":
			return messages, errors.New(rest)
		case "LMSG", "HMSG":
			messages = append(messages, strings.Fields(rest)[0])
			if err := l.skip(rest); err != nil {
				return messages, err
			}
		}
	}
}

// skip reads and discards the content of a message; its size is the last field.
func (l *leafNode) skip(fields string) error {
	var size int64
	if _, err := fmt.Sscan(fields[strings.LastIndexByte(fields, ' ')+1:], &size); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, l.in, size+2)
	return err
}

func (l *leafNode) publish(subject, reply, body string) {
	l.write(fmt.Sprintf("LMSG %s %s%d\r\n%s\r\n", subject, spaced(reply), len(body), body))
}

func (l *leafNode) publishWith(header, value, subject, body string) {
	head := fmt.Sprintf("NATS/1.0\r\n%s: %s\r\n\r\n", header, value)
	l.write(fmt.Sprintf("HMSG %s %d %d\r\n%s%s\r\n", subject, len(head), len(head)+len(body), head, body))
}

func spaced(word string) string {
	if word == "" {
		return ""
	}
	return word + " "
}

// ofArea3 reports whether a leaf node of area 3 may receive a message.
func ofArea3(subject string) bool {
	return strings.HasPrefix(subject, "procfleet.agent.3.") || strings.HasPrefix(subject, "_INBOX.3.") || subject == agentproto.SettingsChangedAll ||
		strings.HasPrefix(subject, "$LDS.")
}

// forEachLeaf runs test as a leaf node, and as a leaf node that declares itself the hub.
func forEachLeaf(t *testing.T, test func(s *site, hub bool)) {
	t.Helper()
	onEachBroker(t, func(s *site) {
		for _, hub := range []bool{false, true} {
			s.t.Run(fmt.Sprintf("hub=%v", hub), func(t *testing.T) { test(s.in(t), hub) })
		}
	})
}

// in returns the site for a subtest.
func (s *site) in(t *testing.T) *site {
	t.Helper()
	of := *s
	of.t = t
	return &of
}

// A leaf node can publish only for its own area, also if it declares itself the hub. The broker drops
// forbidden messages of a hub without an error.
func TestALeafNodePublishesForItsAreaAlone(t *testing.T) {
	t.Parallel()
	forEachLeaf(t, func(s *site, hub bool) {
		t := s.t
		server, js := s.filled()
		heard, err := server.SubscribeSync("procfleet.>")
		if err != nil {
			t.Fatal(err)
		}
		server.isAllowed("listening")
		victims, before := s.victims(), s.streams(js)
		for _, subject := range append(targets(before),
			"procfleet.agent.3.10-0-0-1", "procfleet.agent.4.10-0-0-1", "procfleet.answer.4.10-0-0-1.w.1", "procfleet.answer.3", "procfleet.presence.4", "procfleet.processes.4",
			"procfleet.settings.4", "procfleet.event.4", "procfleet.hostevent.3", "procfleet.result.s.4", "procfleet.result.s.30", "procfleet.submit", "procfleet.task.finished",
			"procfleet.progress.1", "procfleet.audit.refused", "_INBOX.3.10-0-0-1.x", "_INBOX.4.10-0-0-1.x", "_INBOX.server.x", "_INBOX.producer.x.y",
			"$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.SNAPSHOT.PROCFLEET_OPS", "$JS.API.STREAM.RESTORE.X", "$JS.API.STREAM.MSG.GET.PROCFLEET_OPS",
			"$JS.API.DIRECT.GET.PROCFLEET_OPS", "$JS.API.CONSUMER.CREATE.PROCFLEET_OPS.x", "$JS.API.CONSUMER.MSG.NEXT.PROCFLEET_OPS.deliver-s",
			"$JS.API.INFO", "$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.SERVER.X.RELOAD",
		) {
			if strings.HasPrefix(subject, "procfleet.answer.3.") {
				continue // its own area's
			}
			l := s.asLeaf(hub)
			l.publish(subject, "", "{}")
			if _, err := l.flush(); !hub && (err == nil || !strings.Contains(err.Error(), "Permissions Violation for Publish")) {
				t.Errorf("publishing to %s is not refused: %v", subject, err)
			}
		}
		if n := (victim{server, heard}).drain(); n > 0 {
			t.Errorf("%d messages reached the server", n)
		}
		for what, v := range victims {
			if n := v.drain(); n > 0 {
				t.Errorf("%d messages reached %s", n, what)
			}
		}
		(&attacker{user: server}).judge(before, s.streams(js))

		l := s.asLeaf(hub)
		own := []string{"procfleet.presence.3", "procfleet.processes.3", "procfleet.settings.3", "procfleet.event.3", "procfleet.result.b.3", "procfleet.answer.3.10-0-0-1.w.1"}
		for _, subject := range own {
			l.publish(subject, "", "{}")
			if m, err := heard.NextMsg(patience); err != nil || m.Subject != subject {
				t.Errorf("publishing to %s: %v, %v", subject, m, err)
			}
		}
	})
}

// A leaf node receives only messages for its own area: the broker accepts a subscription with a wildcard,
// and checks each message.
func TestALeafNodeHearsItsAreaAlone(t *testing.T) {
	t.Parallel()
	forEachLeaf(t, func(s *site, hub bool) {
		t := s.t
		for _, subject := range []string{"procfleet.submit", "procfleet.agent.4.10-0-0-1", "procfleet.result.s.3", "procfleet.task.finished", "_INBOX.server.x", "_INBOX.4.10-0-0-1.x", "$JS.API.INFO"} {
			l := s.asLeaf(hub)
			l.write("LS+ " + subject + "\r\n")
			if _, err := l.flush(); !hub && (err == nil || !strings.Contains(err.Error(), "Permissions Violation for Subscription")) {
				t.Errorf("subscribing to %s is not refused: %v", subject, err)
			}
		}
		const last = "_INBOX.3.10-0-0-1.x" // the last message that the leaf node may receive
		server, producer := s.as(natsauth.Server, 0), s.as(natsauth.Producer, 0)
		credentials, err := s.authority.Enroll(&natsauth.HostUser{Cloud: 4, Addr: netip.MustParseAddr("10.0.0.2")}, 0)
		if err != nil {
			t.Fatal(err)
		}
		agent := s.connect(credentials)
		l := s.asLeaf(hub)
		for _, subject := range []string{">", "procfleet.>", "procfleet.agent.*.*", "procfleet.result.*.*", "procfleet.answer.>", "_INBOX.>", "_INBOX.server.>", "_R_.>", "_GR_.>", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>"} {
			l.write("LS+ " + subject + "\r\n")
			for _, queue := range []string{"agent", "workers"} {
				l.write("LS+ " + subject + " " + queue + " 100000\r\n")
			}
		}
		if _, err := l.flush(); err != nil {
			t.Fatal(err)
		}
		commands, err := agent.QueueSubscribeSync("procfleet.agent.4.10-0-0-2", agentproto.AgentQueue)
		if err != nil {
			t.Fatal(err)
		}
		agent.isAllowed("listening")
		for range 20 {
			if err := server.Publish(commands.Subject, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := commands.NextMsg(patience); err != nil {
				t.Fatal("a command to a host of another area, of which the leaf node is in the queue group:", err)
			}
		}
		js, err := bus.JetStream(producer.Conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "procfleet.submit", []byte("{}")); err != nil {
			t.Error("a submission:", err)
		}
		if js, err = bus.JetStream(server.Conn); err != nil {
			t.Fatal(err)
		}
		s.fill(js)
		for _, subject := range []string{"procfleet.agent.4.10-0-0-1", "procfleet.answer.3.10-0-0-1.w.1", "_INBOX.server.x", "_INBOX.4.10-0-0-1.x", "_INBOX.producer.x.y", "procfleet.settingschanged", "procfleet.agent.3.10-0-0-1", last} {
			if err := server.Publish(subject, []byte("secret")); err != nil {
				t.Fatal(err)
			}
		}
		server.isAllowed("publishing")
		for arrived := false; !arrived; {
			got, err := l.flush()
			if err != nil {
				t.Fatal(err)
			}
			for _, subject := range got {
				if !ofArea3(subject) {
					t.Errorf("the leaf node received %s", subject)
				}
			}
			arrived = slices.Contains(got, last)
		}
		if m, err := server.Request("procfleet.agent.4.10-0-0-9", nil, patience); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("a request to a host of another area, where no agent is: %v, %v", m, err)
		}
	})
}

// ofLeaf are subjects to which the leaf node of area 3 may publish: one for each of its rights.
var ofLeaf = []string{
	agentproto.PresenceSubject(3), agentproto.ProcessesSubject(3), agentproto.SettingsSubject(3),
	agentproto.EventSubject(3), agentproto.ResultSubject("s", 3), agentproto.ResultSubject("b", 3), "procfleet.answer.3.10-0-0-1.w.1",
}

// TestALeafNodesReplySubjectReachesNothing: no subject to which a leaf node may publish
// is a stream's, so that JetStream acknowledges nothing on the subject that it names.
func TestALeafNodesReplySubjectReachesNothing(t *testing.T) {
	t.Parallel()
	forEachLeaf(t, func(s *site, hub bool) {
		t := s.t
		server, js := s.filled()
		victims, before := s.victims(), s.streams(js)
		for _, subject := range ofLeaf {
			l := s.asLeaf(hub)
			for _, target := range targets(before) {
				l.publish(subject, target, "attack")
			}
			if _, err := l.flush(); err != nil {
				t.Errorf("publishing to %s: %v", subject, err)
			}
		}
		s.settle(js)
		(&attacker{user: server, subjects: ofLeaf}).judge(before, s.streams(js))
		for what, heard := range victims {
			if n := heard.drain(); n > 0 {
				t.Errorf("%d messages reached %s", n, what)
			}
		}
	})
}

// The trace header of a leaf node must not remove messages. The oldest supported broker checks the right to
// the destination of a trace only for clients.
func TestATraceOfALeafNodeRemovesNothing(t *testing.T) {
	t.Parallel()
	forEachLeaf(t, func(s *site, hub bool) {
		server, js := s.filled()
		before := s.streams(js)
		for _, subject := range []string{agentproto.ResultSubject("s", 3), agentproto.EventSubject(3)} {
			for _, target := range targets(before) {
				l := s.asLeaf(hub) // the broker may end it for the trace
				l.publishWith("Nats-Trace-Dest", target, subject, "attack")
				_, _ = l.flush()
			}
		}
		s.settle(js)
		(&attacker{user: server, grows: slices.Collect(maps.Keys(before))}).judge(before, s.streams(js))
	})
}

// TestALeafNodeAcknowledgesMessagesOfOthers shows what SECURITY.md warns of: brokers
// accept acknowledgements of leaf nodes without a check of rights. So the leaf node of
// one area removes messages that were delivered to servers, and has others delivered
// to itself. If this test fails because a broker refuses that, remove the warning.
func TestALeafNodeAcknowledgesMessagesOfOthers(t *testing.T) {
	t.Parallel()
	forEachLeaf(t, func(s *site, hub bool) {
		t := s.t
		js, err := bus.JetStream(s.as(natsauth.Server, 0).Conn)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := js.Publish(t.Context(), "procfleet.submit", []byte("secret")); err != nil {
				t.Fatal(err)
			}
		}
		consumer, err := js.Consumer(t.Context(), bus.StreamSubmit, "dispatchers")
		if err != nil {
			t.Fatal(err)
		}
		msg, err := consumer.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			t.Fatal(err)
		}
		before := s.streams(js)[bus.StreamSubmit].State.Msgs
		l := s.asLeaf(hub)
		const inbox = "_INBOX.3.10-0-0-1.x"
		l.write("LS+ " + inbox + "\r\n")
		l.publish(msg.Reply(), inbox, "+NXT")
		testenv.Eventually(t, patience, func() bool {
			got, err := l.flush()
			if err != nil {
				t.Fatal(err)
			}
			return slices.Contains(got, inbox)
		}, "the leaf node receives the next submission")
		testenv.Eventually(t, patience, func() bool { return s.streams(js)[bus.StreamSubmit].State.Msgs == before-1 }, "the submission is removed")
	})
}
