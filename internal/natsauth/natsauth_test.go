package natsauth_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

const patience = 30 * time.Second

// site is a broker that accepts the users of one authority, with the streams in
// place.
type site struct {
	t         *testing.T
	authority *natsauth.Authority
	url       string
	leaves    string            // address for leaf nodes, if the broker is another process
	server    *natsembed.Server // nil if the broker is another process
}

func newSite(t *testing.T) *site {
	t.Helper()
	authority, err := natsauth.Create(filepath.Join(t.TempDir(), "nats-auth"))
	if err != nil {
		t.Fatal(err)
	}
	broker, err := authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	server, err := natsembed.Start(natsembed.Config{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Authority: broker, Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	s := &site{t: t, authority: authority, server: server, url: server.ClientURL()}
	s.prepare()
	return s
}

// prepare creates the streams.
func (s *site) prepare() {
	t := s.t
	t.Helper()
	js, err := bus.JetStream(s.as(natsauth.Server, 0).Conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), js, bus.Options{}); err != nil {
		t.Fatal(err)
	}
}

// user is a connection and the errors that the broker has sent to it.
type user struct {
	t *testing.T
	*nats.Conn
	refused chan error
}

func (s *site) connect(credentials string, opts ...nats.Option) *user {
	s.t.Helper()
	u := &user{t: s.t, refused: make(chan error, 100)}
	opts = append(opts, nats.UserCredentialBytes([]byte(credentials)), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.refused <- err }))
	conn, err := nats.Connect(s.url, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.Close)
	u.Conn = conn
	return u
}

func (s *site) as(role natsauth.Role, cloud int64) *user {
	s.t.Helper()
	credentials, err := s.authority.NewUser(role, "x", cloud, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.connect(credentials, nats.CustomInboxPrefix(natsauth.InboxPrefix(role, nameIn(s.t, credentials))))
}

// nameIn returns the public key of the user in credentials.
func nameIn(t *testing.T, credentials string) string {
	t.Helper()
	user, _, err := natsauth.ParseCredentials([]byte(credentials))
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func hostUser(ip string, generation int) *natsauth.HostUser {
	return &natsauth.HostUser{Cloud: 3, Addr: netip.MustParseAddr(ip), Generation: generation}
}

func (s *site) agent(ip string) *user {
	s.t.Helper()
	u := hostUser(ip, 0)
	credentials, err := s.authority.Enroll(u, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.connect(credentials, nats.CustomInboxPrefix(agentproto.AgentInbox(u.Cloud, u.Addr)))
}

// isRefused fails unless the broker sends an error for the last operation.
func (u *user) isRefused(what string) {
	u.t.Helper()
	select {
	case err := <-u.refused:
		if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			u.t.Errorf("%s: %v", what, err)
		}
	case <-time.After(patience):
		u.t.Errorf("%s is not refused", what)
	}
}

// isAllowed waits until the broker has processed all operations, and fails on an error.
func (u *user) isAllowed(what string) {
	u.t.Helper()
	if err := u.FlushTimeout(patience); err != nil {
		u.t.Fatal(err)
	}
	select {
	case err := <-u.refused:
		u.t.Errorf("%s: %v", what, err)
	default:
	}
}

func TestAnAgentMayDoItsWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.as(natsauth.Server, 0)
	for _, ip := range []string{"10.0.0.1", "fd00::1", "::ffff:1"} {
		agent := s.agent(ip)
		subject := agentproto.AgentSubject(3, netip.MustParseAddr(ip))
		answered, err := agent.QueueSubscribe(subject, agentproto.AgentQueue, func(m *nats.Msg) { _ = m.Respond([]byte("done")) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := agent.SubscribeSync(agentproto.SettingsChangedAll); err != nil {
			t.Fatal(err)
		}
		agent.isAllowed("listening")

		answers, err := server.SubscribeSync(agentproto.AnswersTo("w.*"))
		if err != nil {
			t.Fatal(err)
		}
		if err := server.PublishRequest(subject, agentproto.AnswerSubject(subject, "w.1"), []byte("do")); err != nil {
			t.Fatal(err)
		}
		if m, err := answers.NextMsg(patience); err != nil || string(m.Data) != "done" {
			t.Errorf("%s answers %v, %v", ip, m, err)
		}
		if m, err := agent.Request(subject, []byte("who"), patience); err != nil || string(m.Data) != "done" {
			t.Errorf("%s asks on its own subject: %v, %v", ip, m, err)
		}
		for _, subject := range []string{
			agentproto.ResultSubject("s", 3), agentproto.ResultSubject("b", 3), agentproto.EventSubject(3),
			agentproto.PresenceSubject(3), agentproto.ProcessesSubject(3), agentproto.SettingsSubject(3),
		} {
			worker, err := server.QueueSubscribe(subject, "worker", func(m *nats.Msg) { _ = m.Respond([]byte("receipt")) })
			if err != nil {
				t.Fatal(err)
			}
			server.isAllowed("listening")
			if m, err := agent.Request(subject, []byte("x"), patience); err != nil || string(m.Data) != "receipt" {
				t.Errorf("%s sends to %s: %v, %v", ip, subject, m, err)
			}
			if err := worker.Unsubscribe(); err != nil {
				t.Fatal(err)
			}
		}
		agent.isAllowed("its work")
		if err := answered.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		// If the agent has unsubscribed, the server receives "no responders" at once, on a
		// subject of the same wildcard.
		agent.isAllowed("leaving")
		if err := server.PublishRequest(subject, agentproto.AnswerSubject(subject, "w.2"), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := answers.NextMsg(patience); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s is gone: %v", ip, err)
		}
		if err := answers.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAgentMayDoNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	agent, other := s.agent("10.0.0.1"), "procfleet.agent.3.10-0-0-2"
	for _, subject := range []string{
		other, "procfleet.agent.3.*", "procfleet.agent.>", "procfleet.>", ">", "*.>", "procfleet.op.*.*", "procfleet.result.s.3",
		"procfleet.presence.3", "procfleet.hostevent.3", "procfleet.answer.>", "procfleet.task.finished", "procfleet.submit", "_INBOX.>", "_INBOX.3.>", "_INBOX.3.10-0-0-2.>",
		"$JS.API.>", "$SYS.>", "procfleet.agent.30.10-0-0-1",
	} {
		if _, err := agent.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		agent.isRefused("subscribing to " + subject)
		if _, err := agent.QueueSubscribeSync(subject, agentproto.AgentQueue); err != nil {
			t.Fatal(err)
		}
		agent.isRefused("subscribing to " + subject + " in a queue group")
	}
	for _, subject := range []string{
		other, "procfleet.presence.4", "procfleet.processes.4", "procfleet.settings.4", "procfleet.event.4", "procfleet.result.s.4",
		"procfleet.answer.3.10-0-0-2.w.1", "procfleet.settingschanged", "procfleet.submit", "procfleet.task.finished", "procfleet.op.s.3",
		"procfleet.hostevent.3", "procfleet.drained.results", "_INBOX.3.10-0-0-2.x", "_INBOX.x", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.DELETE.PROCFLEET_OPS", "$JS.API.STREAM.PURGE.PROCFLEET_OPS",
		"$JS.API.STREAM.MSG.GET.PROCFLEET_OPS", "$JS.API.DIRECT.GET.PROCFLEET_OPS", "$JS.API.CONSUMER.MSG.NEXT.PROCFLEET_OPS.deliver-s",
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.ACK.PROCFLEET_OPS.deliver-s.1.1.1.1.0", "$SYS.REQ.SERVER.PING",
	} {
		if err := agent.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		agent.isRefused("publishing to " + subject)
	}
}

// With a right to reply to every requester, an agent could send a request to itself and name any subject
// as the reply subject.
func TestAnAgentCannotHaveItselfAllowedMore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	agent := s.agent("10.0.0.1")
	mine := agentproto.AgentSubject(3, netip.MustParseAddr("10.0.0.1"))
	asked, err := agent.SubscribeSync(mine)
	if err != nil {
		t.Fatal(err)
	}
	const target = "procfleet.agent.3.10-0-0-2"
	if err := agent.PublishRequest(mine, target, nil); err != nil {
		t.Fatal(err)
	}
	m, err := asked.NextMsg(patience)
	if err != nil || m.Reply != target {
		t.Fatal(m, err)
	}
	if err := m.Respond([]byte("a command")); err != nil {
		t.Fatal(err)
	}
	agent.isRefused("answering oneself on another's subject")
}

func TestRolesMayDoWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	producer := s.as(natsauth.Producer, 0)
	js, err := bus.JetStream(producer.Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "procfleet.submit", []byte("{}")); err != nil {
		t.Error(err)
	}
	if err := producer.Publish("procfleet.agent.3.10-0-0-1", nil); err != nil {
		t.Fatal(err)
	}
	producer.isRefused("a command of a producer")
	for _, subject := range []string{"procfleet.op.s.3", "procfleet.result.s.3", "procfleet.task.finished", "$JS.API.STREAM.DELETE.PROCFLEET_OPS", "$JS.API.STREAM.NAMES"} {
		if err := producer.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		producer.isRefused("publishing to " + subject)
	}
	for _, subject := range []string{"procfleet.>", "procfleet.submit", "procfleet.agent.>", "procfleet.result.>", "procfleet.event.>"} {
		if _, err := producer.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		producer.isRefused("subscribing to " + subject)
	}
	push := s.as(natsauth.Push, 0)
	if err := push.Publish("$SYS.REQ.SERVER.X.RELOAD", nil); err != nil {
		t.Fatal(err)
	}
	push.isRefused("reloading a server with what tells it of accounts")
	monitor := s.as(natsauth.Monitor, 0)
	if m, err := monitor.Request("$SYS.REQ.SERVER.PING", nil, patience); err != nil || len(m.Data) == 0 {
		t.Error(m, err)
	}
	if err := monitor.Publish("$SYS.REQ.SERVER.X.RELOAD", nil); err != nil {
		t.Fatal(err)
	}
	monitor.isRefused("reloading a server")
	broker, err := s.authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	account := broker.Account
	before := broker.Accounts[account]
	for _, subject := range []string{
		"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.PACK",
		"$SYS.REQ.ACCOUNT." + account + ".CLAIMS.UPDATE", "$SYS.ACCOUNT." + account + ".CLAIMS.UPDATE",
	} {
		if err := monitor.Publish(subject, []byte(before)); err != nil {
			t.Fatal(err)
		}
		monitor.isRefused("undoing revocations with an older account by " + subject)
	}
	if m, err := monitor.Request("$SYS.REQ.ACCOUNT."+account+".CONNZ", nil, patience); err != nil || len(m.Data) == 0 {
		t.Error(m, err)
	}
	leaf, err := s.authority.NewUser(natsauth.Leaf, "area", 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := nats.Connect(s.url, nats.UserCredentialBytes([]byte(leaf))); err == nil {
		conn.Close()
		t.Error("the user of a leaf node connects as a client")
	}
}

func TestARevokedUserIsDisconnectedAndTheNextGenerationIsNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old, err := s.authority.Enroll(hostUser("10.0.0.1", 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	agent, other := s.connect(old), s.agent("10.0.0.2")
	name, err := s.authority.Public(hostUser("10.0.0.1", 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.authority.Revoke(name); err != nil {
		t.Fatal(err)
	}
	s.tellBroker()
	testenv.Eventually(t, patience, func() bool { return !agent.IsConnected() }, "the revoked user is disconnected")
	if !other.IsConnected() {
		t.Error("another user is disconnected as well")
	}
	if conn, err := nats.Connect(s.url, nats.UserCredentialBytes([]byte(old))); err == nil {
		conn.Close()
		t.Error("a revoked user connects again")
	}
	next, err := s.authority.Enroll(hostUser("10.0.0.1", 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.connect(next)

	// A later revocation does not end the earlier one.
	name, err = s.authority.Public(hostUser("10.0.0.2", 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.authority.Revoke(name); err != nil {
		t.Fatal(err)
	}
	s.tellBroker()
	testenv.Eventually(t, patience, func() bool { return !other.IsConnected() }, "the other one is disconnected")
	if conn, err := nats.Connect(s.url, nats.UserCredentialBytes([]byte(old))); err == nil {
		conn.Close()
		t.Error("who was revoked first connects again")
	}
}

// A revocation also applies to credentials that a machine with a fast clock created, for hosts and all
// other roles.
func TestCredentialsMadeByAClockThatIsAheadDoNotOutliveTheirRevocation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	host, err := s.authority.Enroll(hostUser("10.0.0.1", 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	server, err := s.authority.NewUser(natsauth.Server, "x", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for role, credentials := range map[natsauth.Role]string{natsauth.Agent: host, natsauth.Server: server} {
		ahead := s.madeAhead(role, credentials)
		conn := s.connect(ahead)
		name, _, err := natsauth.ParseCredentials([]byte(ahead))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.authority.Revoke(name); err != nil {
			t.Fatal(err)
		}
		s.tellBroker()
		testenv.Eventually(t, patience, func() bool { return !conn.IsConnected() }, "the "+string(role)+" is disconnected")
		if again, err := nats.Connect(s.url, nats.UserCredentialBytes([]byte(ahead))); err == nil {
			again.Close()
			t.Errorf("the %s connects again", role)
		}
	}
	next, err := s.authority.Enroll(hostUser("10.0.0.1", 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.connect(next)
}

// madeAhead returns credentials as a machine creates them whose clock is a year ahead.
func (s *site) madeAhead(role natsauth.Role, credentials string) string {
	s.t.Helper()
	signer := s.seeds().signing(role)
	token, err := jwt.ParseDecoratedJWT([]byte(credentials))
	if err != nil {
		s.t.Fatal(err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		s.t.Fatal(err)
	}
	claims.IssuedAt = time.Now().AddDate(1, 0, 0).Unix()
	body, err := json.Marshal(claims)
	if err != nil {
		s.t.Fatal(err)
	}
	signed := token[:strings.IndexByte(token, '.')+1] + base64.RawURLEncoding.EncodeToString(body)
	signature, err := signer.Sign([]byte(signed))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Replace(credentials, token, signed+"."+base64.RawURLEncoding.EncodeToString(signature), 1)
}

// seeds are private keys of the authority.
type seeds struct {
	t        *testing.T
	operator nkeys.KeyPair
	roles    map[natsauth.Role]string
}

func (s *site) seeds() seeds {
	s.t.Helper()
	var authority struct {
		Operator string                   `json:"operator"`
		Signing  map[natsauth.Role]string `json:"signing"`
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.authority.BrokerPath()), "authority.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &authority)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return seeds{s.t, pair(s.t, authority.Operator), authority.Signing}
}

func (k seeds) signing(role natsauth.Role) nkeys.KeyPair { return pair(k.t, k.roles[role]) }

func pair(t *testing.T, seed string) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// NATS does not limit the connections of a user, so an agent can open all connections that its account
// may have. An operator must still be able to revoke it.
func TestAFloodOfConnectionsLeavesRoomForItsRevocation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limitConnections(5)
	credentials, err := s.authority.Enroll(hostUser("10.0.0.1", 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	var flood []*user
	for refused := false; !refused; {
		if conn, err := nats.Connect(s.url, nats.UserCredentialBytes([]byte(credentials)), nats.NoReconnect()); err != nil {
			refused = true
			if !strings.Contains(err.Error(), "maximum account active connections exceeded") {
				t.Error(err)
			}
		} else {
			t.Cleanup(conn.Close)
			flood = append(flood, &user{t: t, Conn: conn})
		}
		if len(flood) > 5 {
			t.Fatal("one agent opens more connections than its account may have")
		}
	}
	s.as(natsauth.Push, 0)
	if err := s.authority.Revoke(nameIn(t, credentials)); err != nil {
		t.Fatal(err)
	}
	s.tellBroker()
	for _, conn := range flood {
		testenv.Eventually(t, patience, conn.IsClosed, "a connection of the revoked agent is closed")
	}
	s.agent("10.0.0.2")
}

// limitConnections sets a limit of connections for the fleet's account, lower than procfleet's.
func (s *site) limitConnections(limit int64) {
	s.t.Helper()
	broker, err := s.authority.Broker()
	if err != nil {
		s.t.Fatal(err)
	}
	claims, err := jwt.DecodeAccountClaims(broker.Accounts[broker.Account])
	if err != nil {
		s.t.Fatal(err)
	}
	claims.Limits.Conn = limit
	token, err := claims.Encode(s.seeds().operator)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.server.SetAccount(broker.Account, token); err != nil {
		s.t.Fatal(err)
	}
}

// tellBroker sends the current account to the broker.
func (s *site) tellBroker() {
	s.t.Helper()
	broker, err := s.authority.Broker()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, account := range broker.Changing() {
		if err := s.server.SetAccount(account, broker.Accounts[account]); err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestOnlyTheUserOfALeafNodeConnectsAsOne(t *testing.T) {
	t.Parallel()
	authority, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broker, err := authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range broker.Changing() {
		claims, err := jwt.DecodeAccountClaims(broker.Accounts[account])
		if err != nil {
			t.Fatal(err)
		}
		for _, scope := range claims.SigningKeys {
			of := scope.(*jwt.UserScope)
			types := of.Template.AllowedConnectionTypes
			if len(types) == 0 || types.Contains(jwt.ConnectionTypeLeafnode) != (of.Role == string(natsauth.Leaf)) {
				t.Errorf("users of role %s connect as %v", of.Role, types)
			}
		}
	}
}

func TestUsersAreFoundByTheirNameTheirKeyAndTheirCredentials(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := natsauth.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(role natsauth.Role, name string, valid time.Duration) (credentials, user string) {
		t.Helper()
		credentials, err := a.KeepUser(role, name, 3, valid)
		if err != nil {
			t.Fatal(err)
		}
		user, _, err = natsauth.ParseCredentials([]byte(credentials))
		if err != nil {
			t.Fatal(err)
		}
		return credentials, user
	}
	first, one := keep(natsauth.Producer, "deployer", time.Hour)
	_, two := keep(natsauth.Server, "deployer", 0)
	_, leaf := keep(natsauth.Leaf, "area", 0)
	monitoring, _ := keep(natsauth.Monitor, "watcher", 0)
	if a, err = natsauth.Open(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"deployer": one + " " + two, "area": leaf, leaf: leaf} {
		if users, err := a.UsersCalled(name); err != nil || strings.Join(users, " ") != want {
			t.Errorf("%s is %v, want %s: %v", name, users, want, err)
		}
	}
	if user, err := a.UserOf([]byte(first)); err != nil || user != one {
		t.Error(user, err)
	}
	if _, err := a.UsersCalled("nobody"); err == nil || !strings.Contains(err.Error(), "known users: area, deployer, watcher") {
		t.Error(err)
	}
	if _, err := a.UsersCalled("watcher"); err == nil || !strings.Contains(err.Error(), "no revocations") {
		t.Error(err)
	}
	host, err := a.Enroll(hostUser("10.0.0.1", 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	another, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := another.NewUser(natsauth.Server, "x", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for credentials, want := range map[string]string{
		monitoring: "no revocations", host: "procfleet revoke --host 3:10.0.0.1", foreign: "another authority", "none": "not of a NATS user",
	} {
		if user, err := a.UserOf([]byte(credentials)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, %v, want %q", user, err, want)
		}
	}
}

func TestWhoExpiredIsForgotten(t *testing.T) {
	t.Parallel()
	a, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second round finds the user brief of the first one expired
		if _, err := a.KeepUser(natsauth.Producer, "brief", 0, time.Nanosecond); err != nil {
			t.Fatal(err)
		}
		if _, err := a.KeepUser(natsauth.Producer, "lasting", 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if users, err := a.UsersCalled("brief"); err == nil {
		t.Error(users)
	}
	if users, err := a.UsersCalled("lasting"); len(users) != 2 || err != nil {
		t.Error(users, err)
	}
}

func TestOnlyTheAuthoritysUsersConnect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	another, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := another.Enroll(hostUser("10.0.0.1", 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	for what, opts := range map[string][]nats.Option{"nobody": nil, "a user of another authority": {nats.UserCredentialBytes([]byte(foreign))}} {
		if conn, err := nats.Connect(s.url, opts...); err == nil {
			conn.Close()
			t.Errorf("%s connects", what)
		}
	}
}

// TestOpeningAnAuthorityALaterTimeChangesNothing: every command that opened it issued new tokens of
// the accounts.
func TestOpeningAnAuthorityALaterTimeChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		if _, err := natsauth.Create(dir); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		time.Sleep(time.Hour) // of the test's clock
		if _, err := natsauth.Open(dir); err != nil {
			t.Fatal(err)
		}
		if after := contents(t, dir); after != before {
			t.Errorf("the files were:\n%s\nand are:\n%s", before, after)
		}
	})
}

func TestAnAuthorityIsKeptAndNeverReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := natsauth.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Revoke("UA5KZSYI6SGCXEVMTFKIGSIWT7PMGSXTNMPIQ5OLHBYCVZJPJBFPFGIF"); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	if _, err := natsauth.Create(dir); err == nil {
		t.Error("it is replaced")
	}
	again, err := natsauth.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if after := contents(t, dir); after != before {
		t.Errorf("opening it changes it:\n%s\n%s", before, after)
	}
	a, err1 := first.Public(hostUser("10.0.0.1", 2))
	b, err2 := again.Public(hostUser("10.0.0.1", 2))
	if a != b || err1 != nil || err2 != nil {
		t.Error("a host has another user now", err1, err2)
	}
	if made, err := again.WriteUser(natsauth.Server); !made || err != nil {
		t.Error(made, err)
	}
	with := contents(t, dir)
	if made, err := again.WriteUser(natsauth.Server, "UA5KZSYI6SGCXEVMTFKIGSIWT7PMGSXTNMPIQ5OLHBYCVZJPJBFPFGIF"); made || err != nil || contents(t, dir) != with {
		t.Errorf("a user that is not revoked is made again: %v, %v", made, err)
	}
	users, err := again.UsersCalled("server")
	if err != nil {
		t.Fatal(err)
	}
	if made, err := again.WriteUser(natsauth.Server, users...); !made || err != nil {
		t.Errorf("a revoked one is not: %v, %v", made, err)
	}
	if err := os.Chmod(filepath.Join(dir, "authority.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := natsauth.Open(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that everybody may read: %v", err)
	}
}

// Files of another authority must be rejected: its token would name another account, and with its keys
// brokers would accept its users.
func TestFilesOfAnotherAuthorityAreNotTaken(t *testing.T) {
	t.Parallel()
	dir, foreign := t.TempDir(), t.TempDir()
	for _, of := range []string{dir, foreign} {
		if _, err := natsauth.Create(of); err != nil {
			t.Fatal(err)
		}
	}
	token, err := os.ReadFile(filepath.Join(foreign, "account.jwt"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "account.jwt"), token, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := natsauth.Open(dir); err == nil || !strings.Contains(err.Error(), "not the token of this authority's account") {
		t.Errorf("with the token of another account: %v", err)
	}
	file := filepath.Join(foreign, "authority.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	operator := regexp.MustCompile(`(?m)^operator: .*$`)
	account := regexp.MustCompile(`(?m)^account: (.*)$`).FindSubmatch(text)
	if err := os.WriteFile(file, operator.ReplaceAll(text, append([]byte("operator: "), account[1]...)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := natsauth.Open(foreign); err == nil || !strings.Contains(err.Error(), "operator: it is not a seed of this kind of key") {
		t.Errorf("with an account's key for the operator's: %v", err)
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&all, f.Name(), string(text))
	}
	return all.String()
}

func TestCredentialsSayUntilWhen(t *testing.T) {
	t.Parallel()
	a, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := a.Enroll(hostUser("10.0.0.1", 0), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	user, until, err := natsauth.ParseCredentials([]byte(credentials))
	if err != nil || user == "" || time.Until(until) > time.Hour || time.Until(until) < 0 {
		t.Error(user, until, err)
	}
	if _, _, err := natsauth.ParseCredentials([]byte("no token")); err == nil {
		t.Error("what is no token is taken")
	}
}

func BenchmarkEnroll(b *testing.B) {
	a, err := natsauth.Create(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		u := &natsauth.HostUser{Cloud: 1, Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		if _, err := a.Enroll(u, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// No user may subscribe to the inbox of another one: inboxes of dispatchers and workers receive the bodies of
// submissions, and inboxes of producers receive the results of tasks.
func TestEveryUserHasAnInboxOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	users := map[string]*user{
		"server": s.as(natsauth.Server, 0), "one producer": s.as(natsauth.Producer, 0), "another producer": s.as(natsauth.Producer, 0),
		"monitor": s.as(natsauth.Monitor, 0), "push": s.as(natsauth.Push, 0), "one agent": s.agent("10.0.0.1"), "another agent": s.agent("10.0.0.2"),
	}
	for who, u := range users {
		if _, err := u.SubscribeSync("_INBOX.>"); err != nil {
			t.Fatal(err)
		}
		u.isRefused(who + " subscribing to every inbox")
		for whose, other := range users {
			inbox := other.NewInbox()
			if _, err := u.SubscribeSync(inbox); err != nil {
				t.Fatal(err)
			}
			if what := who + " subscribing to an inbox of " + whose; who == whose {
				u.isAllowed(what)
			} else {
				u.isRefused(what)
			}
		}
	}
}

// JetStream's acknowledgement of a submission and the dispatcher's reply reach the producer's account.
func TestAProducerHearsOfItsSubmission(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	producer, server := s.as(natsauth.Producer, 0), s.as(natsauth.Server, 0)
	for _, subject := range []string{producer.NewInbox(), "procfleet.task.finished"} {
		heard, err := producer.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		producer.isAllowed("subscribing to " + subject)
		if err := server.Publish(subject, []byte("reply")); err != nil {
			t.Fatal(err)
		}
		if m, err := heard.NextMsg(patience); err != nil || string(m.Data) != "reply" {
			t.Errorf("on %s: %v, %v", subject, m, err)
		}
	}
}

// The broker rejects a flood of subscriptions of one agent. Other agents are not affected.
func TestAFloodOfSubscriptionsIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	flood, other := s.agent("10.0.0.1"), s.agent("10.0.0.2")
	for range 1000 {
		if _, err := flood.SubscribeSync(agentproto.SettingsChangedAll); err != nil {
			break // the broker has ended the connection
		}
	}
	select {
	case err := <-flood.refused:
		if !strings.Contains(strings.ToLower(err.Error()), "maximum subscriptions exceeded") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("1000 subscriptions of one agent are not refused")
	}
	if _, err := other.SubscribeSync(agentproto.SettingsChangedAll); err != nil {
		t.Fatal(err)
	}
	other.isAllowed("another agent subscribing")
}

func TestEveryRoleHasLimits(t *testing.T) {
	t.Parallel()
	authority, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broker, err := authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	left := int64(natsauth.BrokerConnections)
	for _, account := range broker.Changing() {
		claims, err := jwt.DecodeAccountClaims(broker.Accounts[account])
		if err != nil {
			t.Fatal(err)
		}
		if l := claims.Limits; l.Conn <= 0 || l.LeafNodeConn < 0 {
			t.Errorf("%s: %d connections, %d leaf nodes", claims.Name, l.Conn, l.LeafNodeConn)
		}
		left -= claims.Limits.Conn + claims.Limits.LeafNodeConn
		for _, scope := range claims.SigningKeys {
			limited(t, scope.(*jwt.UserScope).Role, &scope.(*jwt.UserScope).Template)
		}
	}
	if left <= 0 {
		t.Errorf("all accounts together may have %d connections more than a broker", -left)
	}
	for _, role := range []natsauth.Role{natsauth.Monitor, natsauth.Push} {
		credentials, err := authority.NewUser(role, "x", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.ParseDecoratedJWT([]byte(credentials))
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeUserClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		limited(t, string(role), &claims.UserPermissionLimits)
	}
}

func limited(t *testing.T, role string, l *jwt.UserPermissionLimits) {
	t.Helper()
	if l.Subs <= 0 || l.Payload <= 0 {
		t.Errorf("%s: %d subscriptions, %d bytes", role, l.Subs, l.Payload)
	}
}
