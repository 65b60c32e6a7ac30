package simulate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/agentproto"
)

var (
	accepted = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	now      = accepted.Add(1234567 * time.Nanosecond)
)

func TestReplyByHandIsWhatAgentprotoReads(t *testing.T) {
	t.Parallel()
	want := agentproto.Reply{
		Header:   agentproto.Header{Type: agentproto.TypeReply, ID: "sim1", Sent: now},
		Instance: "sim-1-2", Items: []agentproto.ReplyItem{{Item: 3}, {Item: 70000}},
	}
	data := appendReply(nil, want.Header, want.Instance, []commandItem{{Item: 3}, {Item: 70000}})
	var got agentproto.Reply
	if err := agentproto.Decode(data, agentproto.TypeReply, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestResultsByHandAreWhatAgentprotoReads(t *testing.T) {
	t.Parallel()
	var items []commandItem
	want := agentproto.Results{
		Header: agentproto.Header{Type: agentproto.TypeResults, ID: "sim1", Sent: now},
		Task:   "GSETASK:20260102030405:6", Host: "0:10.0.0.1", Instance: "sim-1-2",
	}
	for i, action := range []string{
		agentproto.ActionStart, agentproto.ActionStop, agentproto.ActionStatus, agentproto.ActionSupervise,
		agentproto.ActionRelease, agentproto.ActionRestart, agentproto.ActionReload, agentproto.ActionKill,
	} {
		item := commandItem{Item: i, Action: action}
		items = append(items, item)
		want.Results = append(want.Results, *success(item, accepted, now))
	}
	data := appendResults(nil, want.Header, &outcome{
		command:  &command{Task: want.Task, Items: items},
		agent:    &agent{host: want.Host, instance: want.Instance},
		accepted: accepted,
	}, now)
	var got agentproto.Results
	if err := agentproto.Decode(data, agentproto.TypeResults, &got); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMemoryForgetsTheOldest(t *testing.T) {
	t.Parallel()
	m := newMemory()
	for i := range remembered + 1 {
		m.remember("t", i, now)
	}
	if _, known := m.recall("t", 0); known {
		t.Error("the oldest is still there")
	}
	if _, known := m.recall("t", remembered); !known {
		t.Error("the newest is not there")
	}
	if len(m.accepted) != remembered {
		t.Errorf("%d items kept, want %d", len(m.accepted), remembered)
	}
}
