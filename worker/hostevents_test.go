package worker_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// event returns a request with an event, signed by header.
func (e *env) event(id string, header func(fleetkey.Message) nats.Header) *nats.Msg {
	data := e.encode(&agentproto.Event{
		Header: agentproto.Header{Type: agentproto.TypeEvent, ID: id},
		Host:   host(1).String(), Instance: "i1", Kind: agentproto.EventRestarted, Message: id,
	})
	return &nats.Msg{Subject: agentproto.EventSubject(0), Data: data, Header: header(fleetkey.Message{Purpose: agentproto.TypeEvent, Body: data})}
}

func TestOnlyVerifiedEventsEnterTheStreamOnceEach(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, s.worker)
	e.Bus.Use(func() *fleetkey.Ring { return s.ring })
	m := fleetkey.Message{Purpose: agentproto.TypeEvent, Body: e.event("forged", func(fleetkey.Message) nats.Header { return nil }).Data}
	forged := 0
	for _, header := range []nats.Header{nil, by(s.ring, host(2), m)} {
		if err := e.Conn.PublishMsg(&nats.Msg{Subject: agentproto.EventSubject(0), Data: m.Body, Header: header}); err != nil {
			t.Fatal(err)
		}
		forged++
	}
	if err := e.Conn.Publish(agentproto.EventSubject(0), []byte("no event")); err != nil {
		t.Fatal(err)
	}
	sign := func(m fleetkey.Message) nats.Header {
		header := by(s.ring, host(1), m)
		header.Set("Nats-Expected-Stream", "ANOTHER") // which NATS would obey
		return header
	}
	genuine := e.event("e1", sign)
	for range 2 { // the agent did not get the first receipt
		if r := e.receives(e.sendUntilReceipt(genuine)); r.Event != "e1" {
			t.Errorf("receipt %+v", r)
		}
	}
	page, err := e.Bus.HostEvents(t.Context(), bus.HostEventQuery{Host: host(1), Limit: 10})
	if err != nil || len(page.Events) != 1 || page.Events[0].Message != "e1" {
		t.Errorf("read %+v, %v", page, err)
	}
	if n := e.queued(bus.StreamHostEvents); n != 1 {
		t.Errorf("%d messages in the stream", n)
	}
	e.eventually(func() bool {
		return s.says(fmt.Sprintf("procfleet_worker_host_events_total{outcome=\"dropped\"} %d\n", forged+1)) && s.counted(agentproto.TypeEvent, "unsigned", 1)
	}, "the others are counted")
}

func TestWithoutTheStreamOfEventsAgentsKeepTheirs(t *testing.T) {
	t.Parallel()
	e := start(t)
	if err := e.JS.DeleteStream(t.Context(), bus.StreamHostEvents); err != nil {
		t.Fatal(err)
	}
	msg := e.event("e1", func(fleetkey.Message) nats.Header { return nil })
	e.eventually(func() bool {
		receipt, _, err := e.request(t.Context(), msg)
		return err == nil && receipt.RetryAfterMS > 0 && receipt.Event == ""
	}, "the agent is requested to send again")
	if err := bus.Ensure(t.Context(), e.JS, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	if r := e.receives(e.sendUntilReceipt(msg)); r.Event != "e1" {
		t.Errorf("receipt %+v", r)
	}
}
