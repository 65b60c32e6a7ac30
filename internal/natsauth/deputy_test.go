package natsauth_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// onEachBroker runs a test against the nats-server of go.mod, and in the long form against the
// oldest that procfleet accepts.
func onEachBroker(t *testing.T, test func(*site)) {
	t.Helper()
	const server = "github.com/nats-io/nats-server/v2"
	t.Run("newest", func(t *testing.T) {
		t.Parallel()
		test(processSite(t, testenv.BuildBinary(t, server)))
	})
	t.Run("oldest", func(t *testing.T) {
		testenv.Long(t, "the oldest nats-server that procfleet accepts")
		t.Parallel()
		test(processSite(t, testenv.BuildTool(t, "test/natsoldest", server)))
	})
}

// processSite returns a [newSite] whose broker is a process of program, a nats-server, and accepts leaf
// nodes.
func processSite(t *testing.T, program string) *site {
	t.Helper()
	authority, err := natsauth.Create(filepath.Join(t.TempDir(), "nats-auth"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	included, err := os.ReadFile(authority.BrokerPath())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\nleafnodes { listen: \"127.0.0.1:-1\" }\njetstream { store_dir: %q, max_file_store: 1GiB }\nresolver { type: full, dir: %q }\n%s",
		dir, filepath.Join(dir, "accounts"), included)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	child := testenv.StartChild(t, nil, program, "-c", conf)
	listens := func(kind string) string {
		line := child.WaitOutput(t, patience, "Listening for "+kind+" connections on ")
		return regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	}
	s := &site{t: t, authority: authority, leaves: listens("leafnode"), url: "nats://" + listens("client")}
	child.WaitOutput(t, patience, "Server is ready")
	s.prepare()
	return s
}

// streamInfos are the state and configuration of every stream, by its name.
type streamInfos map[string]jetstream.StreamInfo

func (s *site) streams(js jetstream.JetStream) streamInfos {
	s.t.Helper()
	all := streamInfos{}
	streams := js.ListStreams(s.t.Context())
	for info := range streams.Info() {
		all[info.Config.Name] = *info
	}
	if err := streams.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}

// filled returns a server's user and its JetStream, after it has stored a message in every stream.
func (s *site) filled() (*user, jetstream.JetStream) {
	s.t.Helper()
	server := s.as(natsauth.Server, 0)
	js, err := bus.JetStream(server.Conn)
	if err != nil {
		s.t.Fatal(err)
	}
	s.fill(js)
	return server, js
}

// fill stores messages in every stream.
func (s *site) fill(js jetstream.JetStream) {
	s.t.Helper()
	for _, info := range s.streams(js) {
		subject := strings.NewReplacer("*", "3", ">", "x").Replace(info.Config.Subjects[0])
		for range 3 {
			if _, err := js.Publish(s.t.Context(), subject, []byte("kept")); err != nil {
				s.t.Fatal(subject, err)
			}
		}
	}
}

// targets are subjects to which the broker itself may publish and an attacker
// may not.
func targets(streams streamInfos) []string {
	all := []string{"procfleet.agent.3.10-0-0-2", "procfleet.answer.3.10-0-0-2.w.1", "procfleet.settingschanged", "_INBOX.3.10-0-0-2.known", natsauth.ServerInbox + ".known"}
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		subjects := streams[name].Config.Subjects
		all = append(all, strings.NewReplacer("*", "3", ">", "x").Replace(subjects[0]))
		for _, api := range []string{"STREAM.PURGE.", "STREAM.DELETE.", "STREAM.MSG.DELETE.", "STREAM.UPDATE.", "STREAM.LEADER.STEPDOWN."} {
			all = append(all, "$JS.API."+api+name)
		}
	}
	return append(all, "$JS.API.CONSUMER.DELETE.PROCFLEET_OPS.deliver-s", "$JS.API.CONSUMER.PAUSE.PROCFLEET_OPS.deliver-s", "$JS.API.CONSUMER.UNPIN.PROCFLEET_OPS.deliver-s")
}

// ofAgent are subjects to which the agent of 3:10.0.0.1 may publish: one for each of its rights.
var ofAgent = []string{
	agentproto.PresenceSubject(3), agentproto.ProcessesSubject(3), agentproto.SettingsSubject(3),
	agentproto.EventSubject(3), agentproto.ResultSubject("s", 3), agentproto.ResultSubject("b", 3),
	"procfleet.answer.3.10-0-0-1.w.1", "procfleet.agent.3.10-0-0-1", "_INBOX.3.10-0-0-1.x",
}

// TestAReplySubjectReachesNothingOfOthers: a publisher to a stream names the
// subject on which JetStream acknowledges the message, and the header
// Nats-Trace-Dest one on which the broker reports where the message went.
// JetStream may publish anywhere, so both are tried with everything that the
// publisher may not do itself. No subject of an agent provokes an acknowledgement.
func TestAReplySubjectReachesNothingOfOthers(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(s *site) {
		t := s.t
		_, js := s.filled()
		victims := s.victims()
		for _, a := range []attacker{
			{s.as(natsauth.Producer, 0), []string{"procfleet.submit"}, []string{bus.StreamSubmit}},
			{s.as(natsauth.Monitor, 0), []string{"$SYS.REQ.SERVER.PING"}, nil},
			{s.as(natsauth.Push, 0), []string{"$SYS.REQ.SERVER.PING"}, nil},
			{s.agent("10.0.0.1"), ofAgent, nil},
		} {
			before := s.streams(js)
			a.attack(targets(before))
			s.settle(js)
			a.judge(before, s.streams(js))
			for what, heard := range victims {
				if n := heard.drain(); n > 0 {
					t.Errorf("%v: %d messages reached %s", a.subjects, n, what)
				}
			}
		}
	})
}

// attacker is a user that publishes to these subjects.
type attacker struct {
	*user
	subjects []string
	grows    []string // streams that may have its messages
}

func (a *attacker) attack(targets []string) {
	a.t.Helper()
	for _, subject := range a.subjects {
		for _, target := range targets {
			traced := nats.NewMsg(subject)
			traced.Header.Set("Nats-Trace-Dest", target)
			if err := errors.Join(a.PublishRequest(subject, target, []byte("attack")), a.PublishMsg(traced)); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	if err := a.FlushTimeout(patience); err != nil {
		a.t.Fatal(err)
	}
}

// judge compares the streams with their state before the attack.
func (a *attacker) judge(before, after streamInfos) {
	a.t.Helper()
	for name, was := range before {
		is := after[name]
		if diff := cmp.Diff(was.Config, is.Config); diff != "" {
			a.t.Errorf("%v: the configuration of %s changed: %s", a.subjects, name, diff)
		}
		if is.State.FirstSeq != was.State.FirstSeq || is.State.Msgs != is.State.LastSeq-is.State.FirstSeq+1 {
			a.t.Errorf("%v: messages of %s are gone: %+v, before: %+v", a.subjects, name, is.State, was.State)
		}
		if is.State.LastSeq != was.State.LastSeq && !slices.Contains(a.grows, name) {
			a.t.Errorf("%v: %d messages reached %s", a.subjects, is.State.LastSeq-was.State.LastSeq, name)
		}
	}
}

// settle returns when JetStream has acknowledged everything that was published
// before: each stream does so in order.
func (s *site) settle(js jetstream.JetStream) {
	s.t.Helper()
	for name, info := range s.streams(js) {
		subject := strings.NewReplacer("*", "3", ">", "x").Replace(info.Config.Subjects[0])
		// The stream rejects this message because of the expected sequence, so it is not stored.
		if _, err := js.Publish(s.t.Context(), subject, nil, jetstream.WithExpectLastSequence(1)); err == nil {
			s.t.Fatal(name, "took a message out of order")
		}
	}
}

// victims returns users with subscriptions to which no message of an attacker may be delivered.
func (s *site) victims() map[string]victim {
	s.t.Helper()
	server, agent, producer := s.as(natsauth.Server, 0), s.agent("10.0.0.2"), s.as(natsauth.Producer, 0)
	all := map[string]victim{}
	for _, v := range []struct {
		who     *user
		subject string
	}{
		{agent, "procfleet.agent.3.10-0-0-2"},
		{agent, "_INBOX.3.10-0-0-2.known"},
		{agent, "procfleet.settingschanged"},
		{server, natsauth.ServerInbox + ".known"},
		{server, "procfleet.answer.3.10-0-0-2.w.1"},
		{producer, "procfleet.task.finished"},
	} {
		sub, err := v.who.SubscribeSync(v.subject)
		if err != nil {
			s.t.Fatal(err)
		}
		all[v.subject] = victim{v.who, sub}
		all[v.subject].drain()
	}
	return all
}

// victim is a user that listens.
type victim struct {
	*user
	heard *nats.Subscription
}

// drain returns the number of messages that the broker has sent.
func (v victim) drain() (n int) {
	v.t.Helper()
	v.isAllowed("listening to " + v.heard.Subject)
	for {
		waiting, _, err := v.heard.Pending()
		if err != nil {
			v.t.Fatal(err)
		}
		if waiting == 0 {
			return n
		}
		if _, err := v.heard.NextMsg(patience); err != nil {
			v.t.Fatal(err)
		}
		n++
	}
}

// BenchmarkSubmission compares a publication within the account of the stream with a publication through
// the service that producers import.
func BenchmarkSubmission(b *testing.B) {
	for _, role := range []natsauth.Role{natsauth.Server, natsauth.Producer} {
		b.Run(string(role), func(b *testing.B) {
			authority, err := natsauth.Create(filepath.Join(b.TempDir(), "nats-auth"))
			if err != nil {
				b.Fatal(err)
			}
			broker, err := authority.Broker()
			if err != nil {
				b.Fatal(err)
			}
			server, err := natsembed.Start(natsembed.Config{StoreDir: b.TempDir(), Listen: "127.0.0.1:0", Authority: broker, Log: testenv.Silent()})
			if err != nil {
				b.Fatal(err)
			}
			defer server.Shutdown()
			open := func(role natsauth.Role) jetstream.JetStream {
				credentials, err := authority.NewUser(role, "x", 0, 0)
				if err != nil {
					b.Fatal(err)
				}
				user, _, err := natsauth.ParseCredentials([]byte(credentials))
				if err != nil {
					b.Fatal(err)
				}
				conn, err := nats.Connect(server.ClientURL(), nats.UserCredentialBytes([]byte(credentials)), nats.CustomInboxPrefix(natsauth.InboxPrefix(role, user)))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(conn.Close)
				js, err := bus.JetStream(conn)
				if err != nil {
					b.Fatal(err)
				}
				return js
			}
			if err := bus.Ensure(b.Context(), open(natsauth.Server), bus.Options{}); err != nil {
				b.Fatal(err)
			}
			js := open(role)
			for b.Loop() {
				if _, err := js.Publish(b.Context(), "procfleet.submit", nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
