package natsauth_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/testenv"
)

// accounts are ways to divide agents and servers among accounts, in the syntax of
// nats-server.
var accounts = map[string]string{
	"one account": `FLEET { users: [{user: server, password: x}, {user: agent, password: x}] }`,
	// The broker replaces reply subjects.
	"services": `
		FLEET {
			users: [{user: server, password: x}]
			exports: [
				{service: "procfleet.presence.*"}, {service: "procfleet.processes.*"}, {service: "procfleet.settings.*"}
				{service: "procfleet.result.*.*"}, {service: "procfleet.event.*"}, {stream: "procfleet.settingschanged"}
			]
			imports: [{service: {account: AGENTS, subject: "procfleet.agent.*.*"}}]
		}
		AGENTS {
			users: [{user: agent, password: x}]
			exports: [{service: "procfleet.agent.*.*"}]
			imports: [
				{service: {account: FLEET, subject: "procfleet.presence.*"}}, {service: {account: FLEET, subject: "procfleet.processes.*"}}
				{service: {account: FLEET, subject: "procfleet.settings.*"}}, {service: {account: FLEET, subject: "procfleet.result.*.*"}}
				{service: {account: FLEET, subject: "procfleet.event.*"}}, {stream: {account: FLEET, subject: "procfleet.settingschanged"}}
			]
		}`,
	// Reply subjects stay as they are; the broker keeps a second subscription in the other account.
	"streams of messages": `
		FLEET {
			users: [{user: server, password: x}]
			exports: [{stream: "procfleet.agent.*.*"}, {stream: "procfleet.settingschanged"}, {stream: "_INBOX.*.*.>"}]
			imports: [
				{stream: {account: AGENTS, subject: "procfleet.presence.*"}}, {stream: {account: AGENTS, subject: "procfleet.processes.*"}}
				{stream: {account: AGENTS, subject: "procfleet.settings.*"}}, {stream: {account: AGENTS, subject: "procfleet.result.*.*"}}
				{stream: {account: AGENTS, subject: "procfleet.event.*"}}, {stream: {account: AGENTS, subject: "procfleet.answer.>"}}
			]
		}
		AGENTS {
			users: [{user: agent, password: x}]
			exports: [
				{stream: "procfleet.presence.*"}, {stream: "procfleet.processes.*"}, {stream: "procfleet.settings.*"}
				{stream: "procfleet.result.*.*"}, {stream: "procfleet.event.*"}, {stream: "procfleet.answer.>"}
			]
			imports: [
				{stream: {account: FLEET, subject: "procfleet.agent.*.*"}}, {stream: {account: FLEET, subject: "procfleet.settingschanged"}}
				{stream: {account: FLEET, subject: "_INBOX.*.*.>"}}
			]
		}`,
}

const (
	accountAgents = 10_000
	accountConns  = 100 // which the agents share
)

// BenchmarkAccountOfAgents compares agents in the account of the servers with agents in
// one of their own. An iteration is a command with its reply, and a result with its
// receipt, for each of 10,000 agents.
func BenchmarkAccountOfAgents(b *testing.B) {
	for name, conf := range accounts {
		b.Run(name, func(b *testing.B) {
			url, broker := startAccounts(b, conf)
			before := residentMiB(b, broker.PID())
			begun := time.Now()
			agents, subjects := startAgents(b, url)
			subscribed, grown := time.Since(begun), residentMiB(b, broker.PID())-before
			server := dialAccount(b, url, "server")
			if _, err := server.QueueSubscribe("procfleet.result.*.*", "worker", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
				b.Fatal(err)
			}
			if err := server.Flush(); err != nil {
				b.Fatal(err)
			}
			result := []string{agentproto.ResultSubject("s", 3)}
			var commands, results time.Duration
			for b.Loop() {
				commands += exchange(b, []*nats.Conn{server}, func(i int) string { return agentproto.AnswerSubject(subjects[i], "w.1") }, agentproto.AnswersTo("w.*"), subjects)
				results += exchange(b, agents, func(i int) string { return strings.Replace(subjects[i], "procfleet.agent.", "_INBOX.", 1) + ".1" }, "", result)
			}
			rate := func(took time.Duration) float64 { return float64(accountAgents*b.N) / took.Seconds() }
			b.ReportMetric(float64(subscribed.Milliseconds()), "subscribe-ms")
			b.ReportMetric(grown, "MiB")
			b.ReportMetric(rate(commands), "commands/s")
			b.ReportMetric(rate(results), "results/s")
		})
	}
}

func startAccounts(b *testing.B, conf string) (url string, broker *testenv.Child) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "nats.conf")
	text := "listen: \"127.0.0.1:-1\"\naccounts {\n" + conf + "\n}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	broker = testenv.StartChild(b, nil, testenv.BuildBinary(b, "github.com/nats-io/nats-server/v2"), "-c", path)
	line := broker.WaitOutput(b, patience, "Listening for client connections on ")
	broker.WaitOutput(b, patience, "Server is ready")
	return "nats://" + regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line), broker
}

func dialAccount(b *testing.B, url, user string) *nats.Conn {
	b.Helper()
	conn, err := nats.Connect(url, nats.UserInfo(user, "x"), nats.CustomInboxPrefix(natsauth.ServerInbox))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	return conn
}

// startAgents subscribes agents to what agents subscribe to.
func startAgents(b *testing.B, url string) (conns []*nats.Conn, subjects []string) {
	b.Helper()
	reply := func(m *nats.Msg) { _ = m.Respond(m.Data) }
	for range accountConns {
		conns = append(conns, dialAccount(b, url, "agent"))
	}
	for i := range accountAgents {
		conn, addr := conns[i%accountConns], netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		subjects = append(subjects, agentproto.AgentSubject(3, addr))
		if _, err := conn.QueueSubscribe(subjects[i], agentproto.AgentQueue, reply); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Subscribe(agentproto.SettingsChangedAll, func(*nats.Msg) {}); err != nil {
			b.Fatal(err)
		}
	}
	for _, conn := range conns {
		if err := conn.Flush(); err != nil {
			b.Fatal(err)
		}
	}
	return conns, subjects
}

// exchange sends a request for each agent to the subjects in turn, and returns how long
// it takes until every reply has come. Replies arrive where inboxes says, or are those
// of the connections.
func exchange(b *testing.B, conns []*nats.Conn, inbox func(i int) string, inboxes string, subjects []string) time.Duration {
	b.Helper()
	all, replies := make(chan struct{}), make(chan *nats.Msg, accountAgents)
	var subs []*nats.Subscription
	subscribe := func(conn *nats.Conn, subject string) {
		sub, err := conn.ChanSubscribe(subject, replies)
		if err != nil {
			b.Fatal(err)
		}
		subs = append(subs, sub)
	}
	if inboxes != "" {
		subscribe(conns[0], inboxes)
	} else {
		for i := range accountAgents {
			subscribe(conns[i%len(conns)], inbox(i))
		}
	}
	for _, conn := range conns {
		if err := conn.Flush(); err != nil {
			b.Fatal(err)
		}
	}
	go func() {
		for range accountAgents {
			<-replies
		}
		close(all)
	}()
	begun := time.Now()
	for i := range accountAgents {
		if err := conns[i%len(conns)].PublishRequest(subjects[i%len(subjects)], inbox(i), []byte(strconv.Itoa(i))); err != nil {
			b.Fatal(err)
		}
	}
	select {
	case <-all:
	case <-time.After(patience):
		b.Fatal("replies are missing")
	}
	took := time.Since(begun)
	for _, sub := range subs {
		if err := sub.Unsubscribe(); err != nil {
			b.Fatal(err)
		}
	}
	return took
}

func residentMiB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	var size, resident float64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		b.Fatal(err)
	}
	return resident * float64(os.Getpagesize()) / (1 << 20)
}
