//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// attacker has all rights on the broker and has recorded every message. It has no
// key.
type attacker struct {
	t     *testing.T
	conn  *nats.Conn
	heard *nats.Subscription
}

func newAttacker(t *testing.T, url string) *attacker {
	t.Helper()
	a := &attacker{t: t, conn: testenv.Connect(t, url)}
	a.heard = a.hear("procfleet.>")
	return a
}

// hear records all messages on a subject.
func (a *attacker) hear(subject string) *nats.Subscription {
	a.t.Helper()
	heard, err := a.conn.SubscribeSync(subject)
	if err == nil {
		err = heard.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = a.conn.Flush()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return heard
}

// recorded waits for the next message of a type.
func (a *attacker) recorded(messageType string) *nats.Msg {
	a.t.Helper()
	return next(a.t, a.heard, messageType)
}

func next(t *testing.T, heard *nats.Subscription, messageType string) *nats.Msg {
	t.Helper()
	for {
		msg, err := heard.NextMsg(startTimeout)
		if err != nil {
			t.Fatalf("no %s was heard: %v", messageType, err)
		}
		if kind, err := agentproto.PeekType(msg.Data); err == nil && kind == messageType {
			return msg
		}
	}
}

// order sends a command to a host's subject and returns the reply of its agent.
func (a *attacker) order(subject string, header nats.Header, data []byte) agentproto.Reply {
	a.t.Helper()
	msg, err := a.conn.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: data}, startTimeout)
	if err != nil {
		a.t.Fatalf("no reply on %s: %v", subject, err)
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(msg.Data, agentproto.TypeReply, &reply); err != nil {
		a.t.Fatal(err)
	}
	return reply
}

// request sends a message like an agent, and returns its receipt. The store then
// has the message or has rejected it.
func (a *attacker) request(subject string, header nats.Header, data []byte) agentproto.Receipt {
	a.t.Helper()
	msg, err := a.conn.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: data}, startTimeout)
	if err != nil {
		a.t.Fatalf("no receipt on %s: %v", subject, err)
	}
	var receipt agentproto.Receipt
	if err := agentproto.Decode(msg.Data, agentproto.TypeReceipt, &receipt); err != nil {
		a.t.Fatal(err)
	}
	return receipt
}

// publish sends a message to which workers do not reply, and then a signed one, and
// waits for the reply to the latter.
func (a *attacker) publish(subject string, header nats.Header, data []byte) {
	a.t.Helper()
	if err := a.conn.PublishMsg(&nats.Msg{Subject: subject, Header: header, Reply: a.conn.NewInbox(), Data: data}); err != nil {
		a.t.Fatal(err)
	}
}

// encode encodes a message.
func encode(t *testing.T, m agentproto.Message) []byte {
	t.Helper()
	data, err := agentproto.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// signedBy returns the headers of a message of a host that the ring signed.
func signedBy(ring *fleetkey.Ring, host, messageType string, data []byte) nats.Header {
	header := nats.Header{}
	ring.Host(host).Sign(header, &fleetkey.Message{Purpose: messageType, Body: data})
	return header
}

func header(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: "attack", Sent: time.Now().UTC()}
}

// mentions reports whether a file of a folder contains the text.
func mentions(t *testing.T, folder, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file that was renamed meanwhile
		}
		found = found || strings.Contains(string(data), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestAttackerOnTheBrokerCannotCommandAHost checks that forged, changed, redirected and
// repeated commands of a client with all rights on the broker run nothing and leave
// nothing in the journal.
func TestAttackerOnTheBrokerCannotCommandAHost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 2)
	thief := newAttacker(t, f.broker.URL)
	host, other := f.agents[0], f.agents[1]
	p := f.procs.new(host.host(), "genuine")
	if done := c.wait(c.submit(operation("start", []proc{p}))); done.Counts["succeeded"] != 1 {
		t.Fatalf("the start: %v", done.Counts)
	}
	command := thief.recorded(agentproto.TypeCommand)
	once := func(what string) {
		t.Helper()
		if n := p.starts(); n != 1 {
			t.Errorf("%s: the start command ran %d times", what, n)
		}
	}

	// A repeated command gets the stored reply.
	if reply := thief.order(command.Subject, command.Header, command.Data); reply.Refused == "" && len(reply.Items) != 1 {
		t.Errorf("reply to the repeated command: %+v", reply)
	}
	once("the command again")

	changed := []byte(strings.ReplaceAll(string(command.Data), "genuine", "forged0"))
	otherHost := []byte(strings.ReplaceAll(string(command.Data), host.ip, other.ip))
	otherSubject := strings.ReplaceAll(command.Subject, "10-99-0-1", "10-99-0-2")
	ownRing := newKeys(t).ring()
	for what, forged := range map[string]struct {
		subject string
		header  nats.Header
		data    []byte
	}{
		"unsigned":                            {command.Subject, nil, changed},
		"changed":                             {command.Subject, command.Header, changed},
		"signed with another fleet's key":     {command.Subject, signedBy(ownRing, host.host(), agentproto.TypeCommand, changed), changed},
		"signed with another host's identity": {command.Subject, signedBy(f.keys.ring(), other.host(), agentproto.TypeCommand, changed), changed},
		"signed as another message":           {command.Subject, signedBy(f.keys.ring(), host.host(), agentproto.TypeResults, changed), changed},
		"redirected":                          {otherSubject, command.Header, command.Data},
		"redirected and changed":              {otherSubject, command.Header, otherHost},
	} {
		if reply := thief.order(forged.subject, forged.header, forged.data); reply.Refused != agentproto.RefusedSignature {
			t.Errorf("%s: reply %+v, want refused as %q", what, reply, agentproto.RefusedSignature)
		}
	}
	for _, a := range f.agents {
		if mentions(t, a.data, "forged0") {
			t.Errorf("the journal of %s has a forged command", a.host())
		}
	}
	if mentions(t, other.data, "genuine") {
		t.Error("the journal has a redirected command")
	}

	host.child.Kill()
	host.start()
	host.waitReady()
	if reply := thief.order(command.Subject, command.Header, command.Data); reply.Refused != agentproto.RefusedIncarnation {
		t.Errorf("reply of the restarted agent: %+v, want refused as %q", reply, agentproto.RefusedIncarnation)
	}
	once("after a restart of the agent")

	host.child.Kill()
	host.data = t.TempDir()
	host.start()
	host.waitReady()
	if reply := thief.order(command.Subject, command.Header, command.Data); reply.Refused != agentproto.RefusedInstance {
		t.Errorf("reply of a new instance: %+v, want refused as %q", reply, agentproto.RefusedInstance)
	}
	once("at another instance")
}

// TestAttackerOnTheBrokerCannotForgeAnOutcome checks that forged results do not change
// the state of an item, neither from a client without a key nor from a host in the
// name of another.
func TestAttackerOnTheBrokerCannotForgeAnOutcome(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	_, c := f.dispatcher("")
	worker := f.worker("")
	f.waitListed(c, 2)
	thief := newAttacker(t, f.broker.URL)
	host, other := f.agents[0].host(), f.agents[1].host()
	p := f.procs.new(host, "slow")
	id := c.submit(map[string]any{"action": "start", "process": p.waiting(), "hosts": []string{host}})
	testenv.Eventually(t, startTimeout, func() bool { return c.task(id).Counts["delivered"] == 1 }, "the agent has accepted the start")

	now := time.Now().UTC()
	forge := func(from string) []byte {
		return encode(t, &agentproto.Results{Header: header(agentproto.TypeResults), Task: id, Host: from, Instance: "i", Results: []agentproto.Result{{
			Item: 0, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCommandFailed, Message: "forged", AcceptedAt: now, FinishedAt: now,
		}}})
	}
	subject := agentproto.ResultSubject("s", 0)
	forged := forge(host)
	attack := func() {
		t.Helper()
		thief.publish(subject, nats.Header{}, forged)
		thief.publish(subject, signedBy(newKeys(t).ring(), host, agentproto.TypeResults, forged), forged)
		thief.publish(subject, signedBy(f.keys.ring(), other, agentproto.TypeResults, forged), forged)
		thief.publish(subject, signedBy(f.keys.ring(), host, agentproto.TypeEvent, forged), forged)
		own := forge(other) // correct except for the owner of the item
		receipt := thief.request(subject, signedBy(f.keys.ring(), other, agentproto.TypeResults, own), own)
		if !slices.Equal(receipt.Rejected, agentproto.ItemList{0}) || len(receipt.Stored) != 0 {
			t.Errorf("the receipt for another host's item: %+v", receipt)
		}
	}
	attack()
	if now := c.task(id); now.State != "running" || now.Counts["delivered"] != 1 {
		t.Errorf("after forged results the task is %s with %v", now.State, now.Counts)
	}
	worker.WaitOutput(t, startTimeout, "message rejected")
	worker.WaitOutput(t, startTimeout, "items of another host")

	p.release(t)
	genuine := thief.recorded(agentproto.TypeResults)
	for !strings.Contains(string(genuine.Data), `"message":"success"`) { // the attacker also hears its own messages
		genuine = thief.recorded(agentproto.TypeResults)
	}
	outcome := func() (task, result) {
		done := c.wait(id)
		return done, c.results(id, 1)[0]
	}
	done, r := outcome()
	if done.Counts["succeeded"] != 1 || r.Message != "success" || r.Late {
		t.Fatalf("the start: %v, %+v", done.Counts, r)
	}
	attack()
	if receipt := thief.request(subject, genuine.Header, genuine.Data); !slices.Equal(receipt.Stored, agentproto.ItemList{0}) {
		t.Errorf("the receipt for the recorded result: %+v", receipt)
	}
	if after, again := outcome(); after.Counts["succeeded"] != 1 || again.Message != r.Message || again.Late {
		t.Errorf("after the repeated results: %v, %+v", after.Counts, again)
	}
}

// TestAttackerOnTheBrokerCannotActAsAHost checks that workers reject messages of hosts
// that are not enrolled, and old announcements.
func TestAttackerOnTheBrokerCannotActAsAHost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	worker := f.worker("")
	f.waitListed(c, 1)
	thief := newAttacker(t, f.broker.URL)
	const forged, replayed = "0:10.99.0.77", "0:10.99.0.78"
	event := func(host, message string) []byte {
		return encode(t, &agentproto.Event{
			Header: header(agentproto.TypeEvent), Host: host, Instance: "i", Kind: agentproto.EventUnsafeHost, Message: message,
		})
	}
	untrue, unsigned := event(forged, "forged event"), encode(t, &agentproto.Presence{Header: header(agentproto.TypePresence), Host: forged, Instance: "i", Incarnation: "p"})
	if err := thief.conn.Publish(agentproto.PresenceSubject(0), unsigned); err != nil {
		t.Fatal(err)
	}
	report := encode(t, &agentproto.Processes{
		Header: header(agentproto.TypeProcesses), Host: f.agents[0].host(), Instance: "i", Number: time.Now().UnixMicro(),
		Processes: []agentproto.ManagedProcess{{Key: "e2e:untrue", Namespace: "e2e", Name: "untrue", ProcName: "untrue", Desired: agentproto.DesiredUp}},
	})
	if err := thief.conn.Publish(agentproto.ProcessesSubject(0), report); err != nil {
		t.Fatal(err)
	}
	worker.WaitOutput(t, startTimeout, `"host":"`+forged+`"`)
	worker.WaitOutput(t, startTimeout, `"host":"`+f.agents[0].host()+`"`)
	truth := event(f.agents[0].host(), "genuine event")
	thief.publish(agentproto.EventSubject(0), nats.Header{}, untrue)
	if receipt := thief.request(agentproto.EventSubject(0), signedBy(f.keys.ring(), f.agents[0].host(), agentproto.TypeEvent, truth), truth); receipt.Event != "attack" {
		t.Errorf("the receipt for an event: %+v", receipt)
	}
	var events, reported json.RawMessage
	c.get("/v1/events", &events)
	if strings.Contains(string(events), "forged event") || !strings.Contains(string(events), "genuine event") {
		t.Errorf("events: %s", events)
	}
	c.get("/v1/processes?namespace=e2e", &reported)
	if strings.Contains(string(reported), "untrue") {
		t.Errorf("processes: %s", reported)
	}

	announce := func(sent time.Time) (again bool) {
		t.Helper()
		data := encode(t, &agentproto.Presence{
			Header: agentproto.Header{Type: agentproto.TypePresence, ID: "recorded", Sent: sent.UTC()}, Host: replayed, Instance: "i", Incarnation: "p",
		})
		msg, err := thief.conn.RequestMsg(&nats.Msg{
			Subject: agentproto.PresenceSubject(0), Data: data, Header: signedBy(f.keys.ring(), replayed, agentproto.TypePresence, data),
		}, startTimeout)
		if err != nil {
			t.Fatal(err)
		}
		var reply agentproto.PresenceReply
		if err := agentproto.Decode(msg.Data, agentproto.TypePresenceReply, &reply); err != nil {
			t.Fatal(err)
		}
		return reply.Again
	}
	known := func() bool { return strings.Contains(strings.Join(c.hosts(), " "), replayed) }
	for _, sent := range []time.Time{time.Now().Add(-10 * time.Minute), time.Now().Add(10 * time.Minute)} {
		if !announce(sent) || known() {
			t.Errorf("an announcement of %s was accepted at %s", sent, time.Now())
		}
	}
	if announce(time.Now()) || !known() {
		t.Error("a current announcement was rejected")
	}
	if strings.Contains(strings.Join(c.hosts(), " "), forged) {
		t.Errorf("hosts: %v", c.hosts())
	}
}

// TestRevokedHostsReportWhatToDo checks that a revoked host executes
// nothing and its result says what to do, and that the host works again after it is
// enrolled.
func TestRevokedHostsReportWhatToDo(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	worker := f.worker("")
	f.waitListed(c, 1)
	host := f.agents[0]
	content := f.keys.content()
	content.Generations = map[string]int{host.host(): 1}
	f.keys.write(content)
	worker.WaitOutput(t, startTimeout, "key file reloaded")
	p := f.procs.new(host.host(), "revoked")
	done := c.wait(c.submit(operation("start", []proc{p})))
	r := c.results(done.ID, 1)[0]
	if r.Code != 117 || !strings.Contains(r.Message, "re-enroll the host") || p.starts() != 0 {
		t.Errorf("code %d, %q, started %d times", r.Code, r.Message, p.starts())
	}
	f.keys.enroll(host.host(), host.identity)
	host.child.WaitOutput(t, startTimeout, "key file reloaded")
	if done := c.wait(c.submit(operation("start", []proc{p}))); done.Counts["succeeded"] != 1 || p.starts() != 1 {
		t.Errorf("enrolled again: %v, started %d times", done.Counts, p.starts())
	}
}

// TestTheFleetKeyIsRotatedWithoutAGap adds a second key and removes the first,
// one role after the other, while tasks run. Every task must succeed.
func TestTheFleetKeyIsRotatedWithoutAGap(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	atDispatcher, atWorker := f.keys, &keys{t, filepath.Join(t.TempDir(), "worker.key")}
	atWorker.write(atDispatcher.content())
	dispatcher, c := f.dispatcher("")
	f.keys = atWorker
	worker := f.worker("")
	f.waitListed(c, 1)
	host := f.agents[0]

	slow, quick := f.procs.new(host.host(), "slow"), f.procs.new(host.host(), "quick")
	running := c.submit(map[string]any{"action": "start", "process": slow.waiting(), "hosts": []string{host.host()}})
	testenv.Eventually(t, startTimeout, func() bool { return c.task(running).Counts["delivered"] == 1 }, "the agent has accepted the start")
	works := func(when string) {
		t.Helper()
		if done := c.wait(c.submit(operation("status", []proc{quick}))); done.Counts["succeeded"] != 1 {
			t.Errorf("%s: %v, %+v", when, done.Counts, c.results(done.ID, 1))
		}
	}
	changes := map[*testenv.Child]int{}
	inForce := func(at *testenv.Child) {
		t.Helper()
		changes[at]++
		testenv.Eventually(t, startTimeout, func() bool {
			return strings.Count(at.Output(), "key file reloaded") == changes[at]
		}, "the changed file is in force")
	}

	old := atWorker.content()
	added, err := fleetkey.NewKey("second")
	if err != nil {
		t.Fatal(err)
	}
	both, second := fleetkey.File{Keys: append([]fleetkey.Key{added}, old.Keys...)}, fleetkey.File{Keys: []fleetkey.Key{added}}
	for _, content := range []fleetkey.File{both, second} {
		atDispatcher.write(content)
		inForce(dispatcher)
		works("at the dispatcher")
		atWorker.write(content)
		inForce(worker)
		works("at the worker")
		atWorker.enroll(host.host(), host.identity)
		inForce(host.child)
		works("at the agent")
	}
	slow.release(t)
	if done := c.wait(running); done.Counts["succeeded"] != 1 || slow.starts() != 1 {
		t.Errorf("the task during the rotation: %v, started %d times: %+v", done.Counts, slow.starts(), c.results(running, 1))
	}
}
