package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// enrolled returns a signature of a message by a host whose identity contains an agent id.
func (s *signing) enrolled(h procfleet.Host, agentID string, m fleetkey.Message) nats.Header {
	header := nats.Header{}
	s.ring.Enroll(h.String(), agentID).Sign(header, &m)
	return header
}

// A worker rejects an agent id in announcements, reports and results that the signing identity does not
// contain. It accepts the rest of the message.
func TestAnAgentIDThatTheIdentityDoesNotHoldIsRefused(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, s.worker)
	const held, claimed = "held", "claimed"
	announce := func(agentID string) agentproto.PresenceReply {
		t.Helper()
		data := e.encode(&agentproto.Presence{
			Header: agentproto.Header{Type: agentproto.TypePresence, ID: "announcement", Sent: time.Now().UTC()},
			Host:   host(1).String(), AgentID: agentID, Instance: "i1", Incarnation: "p1",
		})
		msg, err := e.Conn.RequestMsg(&nats.Msg{
			Subject: agentproto.PresenceSubject(0), Data: data,
			Header: s.enrolled(host(1), held, fleetkey.Message{Purpose: agentproto.TypePresence, Body: data}),
		}, patience)
		if err != nil {
			t.Fatal(err)
		}
		var reply agentproto.PresenceReply
		if err := agentproto.Decode(msg.Data, agentproto.TypePresenceReply, &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	stored := func() taskstore.Presence {
		t.Helper()
		ps, err := e.store.Presences(t.Context(), hosts(1))
		if err != nil {
			t.Fatal(err)
		}
		return ps[0]
	}
	if reply := announce(held); reply.AgentIDRefused != "" || stored().AgentID != held {
		t.Errorf("the id that is held: %+v, stored as %+v", reply, stored())
	}
	for range 2 {
		if reply := announce(claimed); !strings.Contains(reply.AgentIDRefused, "--agent-id") || stored().AgentID != "" || stored().Host != host(1) {
			t.Errorf("an id that is not held: %+v, stored as %+v", reply, stored())
		}
	}
	if !s.says("procfleet_worker_agent_ids_refused_total 2\n") {
		t.Error("the refusals are not counted")
	}
	var event agentproto.Event
	stream, err := e.JS.Stream(t.Context(), bus.StreamHostEvents)
	if err != nil {
		t.Fatal(err)
	}
	e.eventually(func() bool {
		msg, err := stream.GetLastMsgForSubject(t.Context(), "procfleet.hostevent.0")
		return err == nil && agentproto.Decode(msg.Data, agentproto.TypeEvent, &event) == nil
	}, "the refusal is an event")
	if event.Kind != agentproto.EventAgentIDRefused || event.Host != host(1).String() || event.Details["agent_id"] != claimed {
		t.Errorf("event: %+v", event)
	}
	if e.queued(bus.StreamHostEvents) != 1 {
		t.Error("each announcement is an event")
	}

	report := func(n int, agentID string) {
		t.Helper()
		message := &agentproto.Processes{
			Header: agentproto.Header{Type: agentproto.TypeProcesses}, Host: host(n).String(), AgentID: agentID, Instance: "i1", Number: time.Now().UnixMicro(),
			Processes: []agentproto.ManagedProcess{{Key: "k", ProcName: "p", Desired: agentproto.DesiredUp, Status: agentproto.Status{AgentID: agentID}}},
		}
		data := e.encode(message)
		if err := e.Conn.PublishMsg(&nats.Msg{
			Subject: agentproto.ProcessesSubject(0), Data: data,
			Header: s.enrolled(host(n), held, fleetkey.Message{Purpose: agentproto.TypeProcesses, Body: data}),
		}); err != nil {
			t.Fatal(err)
		}
		want := ""
		if agentID == held {
			want = held
		}
		if r := e.waitReport(n, message.Number); r.AgentID != want || r.Processes[0].Status.AgentID != want {
			t.Errorf("report with id %q, held is %q: stored with %q and %q", agentID, held, r.AgentID, r.Processes[0].Status.AgentID)
		}
	}
	report(1, held)
	report(2, claimed)

	for _, agentID := range []string{held, claimed} {
		id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStatus, host(1))).ID
		r := succeeded(0)
		r.Status = &agentproto.Status{AgentID: agentID}
		data := e.encode(resultsOf(id, host(1), r))
		header := s.enrolled(host(1), held, fleetkey.Message{Purpose: agentproto.TypeResults, Body: data})
		e.receives(e.sendUntilReceipt(&nats.Msg{Subject: agentproto.ResultSubject("s", 0), Data: data, Header: header}))
		got := e.waitState(id, 0, procfleet.StateSucceeded)
		if (got.Status.AgentID == held) != (agentID == held) || got.Status.AgentID == claimed {
			t.Errorf("result with id %q: stored with %q", agentID, got.Status.AgentID)
		}
	}
}

// An item whose agent id is claimed by two hosts is rejected, and an item whose agent id no host claims is
// unreachable.
func TestAnItemOfAnAgentIDThatTwoHostsClaimIsRefused(t *testing.T) {
	t.Parallel()
	e := start(t)
	for n := 1; n <= 2; n++ {
		e.store.present(host(n), "i", func(p *taskstore.Presence) { p.AgentID = "claimed" })
	}
	c := chunk(procfleet.ActionStatus, procfleet.Host{}, procfleet.Host{}, procfleet.Host{})
	for i, agentID := range []string{"claimed", "unheard of", ""} {
		c.Items[i].Target.AgentID = agentID
	}
	id := e.submit(time.Minute, c)
	if r := e.waitState(id, 0, procfleet.StateFailed); r.Reason != procfleet.ReasonRefused ||
		!strings.Contains(r.Message, host(1).String()) || !strings.Contains(r.Message, host(2).String()) {
		t.Errorf("claimed by two: %+v", r)
	}
	for item := 1; item <= 2; item++ {
		if r := e.waitState(id, item, procfleet.StateUnreachable); r.Code != procfleet.CodeAgentAbnormal {
			t.Errorf("item %d: %+v", item, r)
		}
	}
	e.eventually(func() bool { return e.queued(bus.StreamHostEvents) == 2 }, "the conflict is an event of both hosts")
}
