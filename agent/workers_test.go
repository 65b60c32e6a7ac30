package agent

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// inbox acts as the workers that receive results of lane "s": it retains the
// messages and replies a receipt for all items.
type inbox struct {
	t        *testing.T
	conn     *nats.Conn
	messages chan message
	sub      *nats.Subscription // nil: no worker is subscribed
}

// message is one message of results.
type message struct {
	agentproto.Results
	trace string
}

func newInbox(t *testing.T, conn *nats.Conn) *inbox {
	t.Helper()
	in := &inbox{t: t, conn: conn, messages: make(chan message, 10_000)}
	in.open()
	t.Cleanup(in.close)
	return in
}

// open subscribes.
func (in *inbox) open() {
	in.t.Helper()
	in.sub = serve(in.t, in.conn, agentproto.ResultSubject("s", 0), func(msg *nats.Msg) *agentproto.Receipt {
		m := message{trace: tracecontext.Text(tracecontext.Extract(in.t.Context(), msg.Header))}
		if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &m.Results); err != nil {
			in.t.Errorf("results %s: %v", msg.Data, err)
		}
		in.messages <- m
		return storedAll(&m.Results)
	})
}

// close unsubscribes: the agent finds no responder.
func (in *inbox) close() {
	if in.sub != nil {
		_ = in.sub.Unsubscribe() // the connection may be closed
		in.sub = nil
	}
}

// storedAll is the receipt for all results of a message.
func storedAll(m *agentproto.Results) *agentproto.Receipt {
	receipt := &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Task: m.Task}
	for _, r := range m.Results {
		receipt.Stored = append(receipt.Stored, r.Item)
	}
	return receipt
}

// serve subscribes and replies with the receipts that reply returns.
func serve(t *testing.T, conn *nats.Conn, subject string, reply func(*nats.Msg) *agentproto.Receipt) *nats.Subscription {
	t.Helper()
	sub, err := conn.Subscribe(subject, func(msg *nats.Msg) {
		data, err := agentproto.Encode(reply(msg))
		if err != nil {
			t.Error(err)
		}
		_ = msg.Respond(data) // without a reply the agent sends again
	})
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// next waits for a message.
func (in *inbox) next() message {
	in.t.Helper()
	select {
	case m := <-in.messages:
		return m
	case <-time.After(patience):
		in.t.Fatal("no results received")
		return message{}
	}
}

// collect waits for the results of n items, and returns how often each arrived.
func (in *inbox) collect(n int) map[journal.ID]int {
	in.t.Helper()
	seen := map[journal.ID]int{}
	for len(seen) < n {
		m := in.next()
		for _, r := range m.Results.Results {
			seen[journal.ID{Task: m.Task, Item: r.Item}]++
		}
	}
	return seen
}

// diary acts as the workers that receive events, and as their stream, which stores each event once.
type diary struct {
	t      *testing.T
	events chan agentproto.Event
}

func newDiary(t *testing.T, n *testenv.NATS) *diary {
	t.Helper()
	d := &diary{t: t, events: make(chan agentproto.Event, 1000)}
	known := map[string]bool{}
	sub := serve(t, n.Conn, agentproto.EventSubject(0), func(msg *nats.Msg) *agentproto.Receipt {
		var e agentproto.Event
		if err := agentproto.Decode(msg.Data, agentproto.TypeEvent, &e); err != nil {
			t.Errorf("event %s: %v", msg.Data, err)
		}
		if !known[e.ID] {
			known[e.ID] = true
			d.events <- e
		}
		return &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Event: e.ID}
	})
	t.Cleanup(func() { _ = sub.Unsubscribe() }) // the connection may be closed
	return d
}

// next waits for an event.
func (d *diary) next() agentproto.Event {
	d.t.Helper()
	select {
	case e := <-d.events:
		return e
	case <-time.After(patience):
		d.t.Fatal("no event received")
		return agentproto.Event{}
	}
}

// fakeWorkers replies to requests without a broker.
type fakeWorkers func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error)

func (f fakeWorkers) RequestMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	return f(ctx, msg)
}

// requester returns the requester of a host with the given keys; nil = not enrolled.
func (f fakeWorkers) requester(t *testing.T, keys *fleetkey.Host) *requester {
	t.Helper()
	m, err := newMetrics(noop.Meter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &requester{sender: f, clock: newClock(), identity: identity{
		authenticator: &authenticator{keys: func() *fleetkey.Host { return keys }, metrics: m, log: testenv.Log(t)},
		host:          "0:10.0.0.1", instance: "i",
	}}
}

// signedReply returns a message, signed with the keys of a host as the reply to a request; without keys it
// is unsigned.
func signedReply(t *testing.T, keys *fleetkey.Host, m agentproto.Message, request string) *nats.Msg {
	t.Helper()
	data, err := agentproto.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Header: nats.Header{}, Data: data}
	keys.Sign(msg.Header, &fleetkey.Message{Purpose: m.MessageType(), Answers: request, Body: data})
	return msg
}

// forgeries returns forged replies, which the agent must reject. Each is made from the receipt that a
// worker would send.
func forgeries(t *testing.T, keys *fleetkey.Host) map[string]func(request string, r agentproto.Receipt) *nats.Msg {
	t.Helper()
	stranger := testenv.NewRing(t).Host(keys.Name())
	return map[string]func(string, agentproto.Receipt) *nats.Msg{
		"acknowledgement of a stream": func(string, agentproto.Receipt) *nats.Msg {
			return &nats.Msg{Data: []byte(`{"stream":"PROCFLEET_RESULTS","seq":1}`)}
		},
		"unsigned receipt": func(request string, r agentproto.Receipt) *nats.Msg {
			return signedReply(t, nil, &r, request)
		},
		"receipt of another fleet": func(request string, r agentproto.Receipt) *nats.Msg {
			return signedReply(t, stranger, &r, request)
		},
		"receipt for another request": func(_ string, r agentproto.Receipt) *nats.Msg {
			return signedReply(t, keys, &r, "another")
		},
		"receipt for other items": func(request string, r agentproto.Receipt) *nats.Msg {
			r.Stored, r.Event = []int{7}, "another"
			return signedReply(t, keys, &r, request)
		},
		"receipt for another task": func(request string, r agentproto.Receipt) *nats.Msg {
			r.Task, r.Event = "another", ""
			return signedReply(t, keys, &r, request)
		},
		"genuine reply of another type": func(request string, _ agentproto.Receipt) *nats.Msg {
			return signedReply(t, keys, &agentproto.PresenceReply{Header: newHeader(agentproto.TypePresenceReply)}, request)
		},
		"signed receipt of another type": func(request string, r agentproto.Receipt) *nats.Msg {
			msg := signedReply(t, nil, &r, request)
			keys.Sign(msg.Header, &fleetkey.Message{Purpose: agentproto.TypePresenceReply, Answers: request, Body: msg.Data})
			return msg
		},
	}
}
