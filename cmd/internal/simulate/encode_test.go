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
		Instance: "sim-1-2", Incarnation: "sim-1-2", Items: []agentproto.ReplyItem{{Item: 3}, {Item: 70000}},
	}
	data := appendReply(nil, want.Header, want.Instance, []commandItem{{Item: 3}, {Item: 70000}}, false, now)
	var got agentproto.Reply
	if err := agentproto.Decode(data, agentproto.TypeReply, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReplyWithResultsByHandIsWhatAgentprotoReads(t *testing.T) {
	t.Parallel()
	want := agentproto.Reply{
		Header:   agentproto.Header{Type: agentproto.TypeReply, ID: "sim1", Sent: now},
		Instance: "sim-1-2", Incarnation: "sim-1-2",
	}
	items := []commandItem{{Item: 3, Action: agentproto.ActionStatus}, {Item: 70000, Action: agentproto.ActionStatus}}
	for _, item := range items {
		want.Items = append(want.Items, agentproto.ReplyItem{Item: item.Item, Result: success(item, now, now)})
	}
	data := appendReply(nil, want.Header, want.Instance, items, true, now)
	var got agentproto.Reply
	if err := agentproto.Decode(data, agentproto.TypeReply, &got); err != nil {
		t.Fatalf("%v in %s", err, data)
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
		accepted: accepted, at: now,
	})
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

func TestProcessesByHandAreWhatAgentprotoReads(t *testing.T) {
	t.Parallel()
	started := now.Truncate(time.Second)
	want := agentproto.Processes{
		Header: agentproto.Header{Type: agentproto.TypeProcesses, ID: "sim1", Sent: now},
		Host:   "0:10.0.0.1", Instance: "sim-1-2", Number: now.UnixMicro(),
	}
	var template []processText
	for i, name := range []string{"process_0", "process_1"} {
		template = append(template, newProcessText(i, started))
		want.Processes = append(want.Processes, agentproto.ManagedProcess{
			Key: "simulated:" + name, Namespace: "simulated", Name: name, ProcName: "process", Desired: agentproto.DesiredUp,
			Status: agentproto.Status{
				At: now, UTCOffset: 28800, Running: true, Supervised: true, Phase: "running", PID: 1000, Stat: "S", Threads: 12,
				StartedAt: started, ElapsedMS: 86_400_000, UserMS: 123_450, SystemMS: 6_780, CPU: 1.25, CPUAverage: 0.75,
				MemoryBytes: 128 << 20, MemoryPercent: 1.56, HostFreeKB: 4 << 20, RegisteredAt: started, LastStartedAt: started,
			},
		})
	}
	data := appendProcesses(nil, want.Header, &agent{host: want.Host, instance: want.Instance}, template)
	var got agentproto.Processes
	if err := agentproto.Decode(data, agentproto.TypeProcesses, &got); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
