package simulate

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

const (
	linkHost = "0:10.0.0.1"
	linkTask = "GSETASK:20260102030405:6"
)

// sentResults returns a link that has sent results of items 1 and 2, in message 1.
func sentResults(t *testing.T, ring *fleetkey.Ring) *link {
	t.Helper()
	l := newLink(Config{Log: testenv.Silent()})
	l.later(outcome{
		command: &command{Task: linkTask, Lane: "s", Items: []commandItem{{Item: 1}, {Item: 2}}},
		agent: &agent{
			host: linkHost, conn: &connection{inbox: "_INBOX.x."},
			keys: hostKeys{ring: func() *fleetkey.Ring { return ring }, host: linkHost},
		},
	})
	l.sendDue()
	if len(l.unstored) != 1 {
		t.Fatalf("%d messages wait for a receipt, want 1", len(l.unstored))
	}
	return l
}

func receiptMessage(t *testing.T, ring *fleetkey.Ring, answers string, r agentproto.Receipt) *nats.Msg {
	t.Helper()
	r.Header = agentproto.Header{Type: agentproto.TypeReceipt, ID: "w1", Sent: time.Now()}
	data, err := agentproto.Encode(&r)
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Subject: "_INBOX.x.1", Data: data, Header: nats.Header{}}
	ring.Sign(msg.Header, linkHost, &fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: answers, Body: data})
	return msg
}

func TestOnlyAVerifiedReceiptMakesASimulatedAgentForget(t *testing.T) {
	t.Parallel()
	ring := testenv.NewRing(t)
	all := agentproto.Receipt{Task: linkTask, Stored: []int{1, 2}}
	unsigned := receiptMessage(t, nil, messageID(1), all)
	altered := receiptMessage(t, ring, messageID(1), agentproto.Receipt{Task: linkTask, RetryAfterMS: 1})
	altered.Data = unsigned.Data
	for name, c := range map[string]struct {
		reply *nats.Msg
		left  int // items
	}{
		"acknowledgement of a stream":        {&nats.Msg{Subject: "_INBOX.x.1", Data: []byte(`{"stream":"PROCFLEET_RESULTS","seq":1}`)}, 2},
		"no content":                         {&nats.Msg{Subject: "_INBOX.x.1"}, 2},
		"no responders":                      {&nats.Msg{Subject: "_INBOX.x.1", Header: nats.Header{"Status": {noResponders}}}, 2},
		"unsigned":                           {unsigned, 2},
		"altered after it was signed":        {altered, 2},
		"signed with keys of another fleet":  {receiptMessage(t, testenv.NewRing(t), messageID(1), all), 2},
		"signed for another request":         {receiptMessage(t, ring, messageID(2), all), 2},
		"of another task":                    {receiptMessage(t, ring, messageID(1), agentproto.Receipt{Task: "GSETASK:20260102030405:7", Stored: []int{1, 2}}), 2},
		"of no item":                         {receiptMessage(t, ring, messageID(1), agentproto.Receipt{Task: linkTask, RetryAfterMS: 100}), 2},
		"of one item":                        {receiptMessage(t, ring, messageID(1), agentproto.Receipt{Task: linkTask, Stored: []int{2, 3}}), 1},
		"of all items, one of them rejected": {receiptMessage(t, ring, messageID(1), agentproto.Receipt{Task: linkTask, Stored: []int{2}, Rejected: []int{1}}), 0},
		"of all items":                       {receiptMessage(t, ring, messageID(1), all), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := sentResults(t, ring)
			l.received(c.reply, time.Now())
			left := 0
			for _, u := range l.unstored {
				left += len(u.command.Items)
			}
			if left != c.left || (left == 0) != (len(l.unstored) == 0) {
				t.Errorf("%d items of %d messages wait for a receipt, want %d", left, len(l.unstored), c.left)
			}
		})
	}
}

func TestASimulatedAgentWaitsAsLongAsAWorkerSays(t *testing.T) {
	t.Parallel()
	ring := testenv.NewRing(t)
	l := sentResults(t, ring)
	told := time.Now()
	l.received(receiptMessage(t, ring, messageID(1), agentproto.Receipt{RetryAfterMS: 3000}), told)
	a := l.unstored[1].agent
	resume := told.Add(3 * time.Second)
	// Results of another task of this agent, in the same lane.
	u := &unstored{outcome: outcome{agent: a, command: &command{Task: "GSETASK:20260102030405:7", Lane: "s"}}}
	l.send(2, u, told.Add(time.Second))
	for number, u := range l.unstored {
		if !u.again.Equal(resume) {
			t.Errorf("message %d is sent %v after the receipt, want 3s", number, u.again.Sub(told))
		}
	}
	l.send(2, u, resume)
	if !u.again.After(resume) {
		t.Error("message 2 was not sent after the wait")
	}
}

// BenchmarkReceipt measures how a simulated agent handles a receipt.
func BenchmarkReceipt(b *testing.B) {
	for name, msg := range map[string][]byte{
		"one item": []byte(`{"type":"` + agentproto.TypeReceipt + `","id":"0123456789abcdef","sent":"2026-01-02T03:04:05.678Z","task":"` + linkTask + `","stored":[70000]}`),
	} {
		b.Run(name, func(b *testing.B) {
			l := newLink(Config{Log: testenv.Silent()})
			a := &agent{keys: hostKeys{ring: func() *fleetkey.Ring { return nil }}}
			m := &nats.Msg{Subject: "_INBOX.x.1", Data: msg}
			b.ReportAllocs()
			for b.Loop() {
				l.unstored[1] = &unstored{outcome: outcome{agent: a, command: &command{Task: linkTask, Items: []commandItem{{Item: 70000}}}}}
				l.received(m, now)
				if len(l.unstored) > 0 {
					b.Fatal("the receipt was not accepted")
				}
			}
		})
	}
}
