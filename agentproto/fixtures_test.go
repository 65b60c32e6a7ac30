package agentproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// record writes the messages after a deliberate change: go test ./agentproto -record
var record = flag.Bool("record", false, "write the messages to testdata/v1")

const messageTypes = 17

// newMessage returns an empty message for a type, nil for an unknown one.
func newMessage(kind string) Message {
	switch kind {
	case TypeCommand:
		return &Command{}
	case TypeReply:
		return &Reply{}
	case TypeResults:
		return &Results{}
	case TypeReceipt:
		return &Receipt{}
	case TypeResend:
		return &Resend{}
	case TypeResendReply:
		return &ResendReply{}
	case TypeCancel:
		return &Cancel{}
	case TypeCancelReply:
		return &CancelReply{}
	case TypeOutput:
		return &Output{}
	case TypeOutputReply:
		return &OutputReply{}
	case TypePresence:
		return &Presence{}
	case TypePresenceReply:
		return &PresenceReply{}
	case TypeProcesses:
		return &Processes{}
	case TypeEvent:
		return &Event{}
	case TypeSettingsRequest:
		return &SettingsRequest{}
	case TypeSettingsReply:
		return &SettingsReply{}
	case TypeSettingsChanged:
		return &SettingsChanged{}
	}
	return nil
}

// samples returns one message of each type with every field set.
func samples(tb testing.TB) []Message {
	tb.Helper()
	at := time.Date(2026, 11, 21, 8, 0, 0, 123456000, time.UTC)
	header := func(kind string) Header {
		return Header{Type: kind, ID: "7d5fa1f6-8f0e-4a53-9f43-1b2f0a4f3a11", Sent: at}
	}
	const task, instance = "GSETASK:20261121080000:123456", "0b7a3c1e-55a1-4c7e-8a5c-6f4e7f0c2d19"
	spec := fullSpec()
	raw, err := json.Marshal(&spec)
	if err != nil {
		tb.Fatal(err)
	}
	result := fullResult(at)
	return []Message{
		&Command{
			Header: header(TypeCommand), Task: task, Lane: "s", Host: "0:10.0.0.1", Instance: instance, Incarnation: "INC", AcceptBefore: at.Add(10 * time.Second), NotAfter: at.Add(time.Hour),
			Items: []CommandItem{{Item: 3, Action: ActionStart, Spec: 0, Fence: 1763712000123456}, {Item: 4, Action: ActionStatus, Spec: 0, Fence: 1763712000123456}},
			Specs: []json.RawMessage{raw},
		},
		&Reply{
			Header: header(TypeReply), Instance: instance, Incarnation: "INC", Refused: RefusedExpired, Message: "accept_before has passed",
			Items: []ReplyItem{{Item: 3}, {Item: 4, Result: &result}},
		},
		&Results{Header: header(TypeResults), Task: task, Host: "0:10.0.0.1", Instance: instance, Results: []Result{result}},
		&Receipt{Header: header(TypeReceipt), Task: task, Stored: []int{4}, Rejected: []int{5}, Event: "7d5fa1f6-8f0e-4a53-9f43-1b2f0a4f3a11", RetryAfterMS: 1500},
		&Resend{Header: header(TypeResend), Task: task, Lane: "b", Host: "3:fd00::1", Instance: instance, Items: []int{1, 2, 3}},
		&ResendReply{
			Header: header(TypeResendReply), Instance: instance, Incarnation: "INC", Refused: RefusedInstance, Message: "another instance",
			Running: []int{1}, Sent: []int{2}, Unknown: []int{3},
		},
		&Cancel{
			Header: header(TypeCancel), Task: task, Lane: "b", Host: "0:10.0.0.1", Instance: instance, Interrupt: true,
			Items: []CancelItem{{Item: 3, Action: ActionStart, Key: "shop:web", Fence: 1763712000123456}},
		},
		&CancelReply{
			Header: header(TypeCancelReply), Instance: instance, Incarnation: "INC", Refused: RefusedStopping, Message: "the agent is shutting down",
			Items: []CancelDecision{{Item: 3, Decision: DecisionBegun}, {Item: 4, Decision: DecisionOver, Result: &result}},
		},
		&Output{Header: header(TypeOutput), Host: "0:10.0.0.1", Key: "shop:web", File: "7", Offset: 4096, Tail: 100, AgeMS: 600_000, LogPath: true},
		&OutputReply{
			Header: header(TypeOutputReply), Instance: instance, Incarnation: "INC", Refused: RefusedHost, Message: "another host",
			File: "7", Data: []byte("ready\n"), Next: 4102, More: true, Lost: true,
		},
		&Presence{
			Header: header(TypePresence), Host: "0:10.0.0.1", AgentID: "agent-7", Instance: instance, Incarnation: "INC", Version: "0.1.0", OS: "linux", Arch: "amd64",
			Labels: map[string]string{"zone": "a1"}, StartedAt: at, Supervised: 12, Leaving: true, CPU: 12.5, Memory: 40.25,
			Other: &AgentProcess{Instance: "other", Incarnation: "INC2"},
		},
		&PresenceReply{Header: header(TypePresenceReply), ServerTime: at, Again: true, AgentIDRefused: "why"},
		&Processes{
			Header: header(TypeProcesses), Host: "0:10.0.0.1", AgentID: "agent-7", Instance: instance, Number: 1763712000123456, Omitted: 3,
			Processes: []ManagedProcess{{
				Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "java", Desired: DesiredUp, Status: *result.Status,
			}},
		},
		&Event{
			Header: header(TypeEvent), Host: "0:10.0.0.1", AgentID: "agent-7", Instance: instance, At: at, Kind: EventLimitExceeded,
			Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "java", PID: 4711, Message: "memory of 31 % is over the limit of 25 %",
			Details: map[string]any{"metric": "memory", "value": 31.25, "limit": 25.0},
		},
		&SettingsRequest{Header: header(TypeSettingsRequest), Host: "0:10.0.0.1", Instance: instance},
		&SettingsReply{
			Header: header(TypeSettingsReply), Error: "the store is away", ServerTime: at,
			Settings: Settings{
				Freezes: []Freeze{{Namespace: "shop", Until: at.Add(time.Hour), Reason: "release 7"}},
				Groups:  []Group{{Namespace: "shop", ID: "g1", CPULimit: 50, MemoryLimit: 25.5, CPUByLimit: true, MemoryByLimit: true}},
			},
		},
		&SettingsChanged{Header: header(TypeSettingsChanged)},
	}
}

func fullSpec() Spec {
	return Spec{
		Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "java", ArgsPattern: "-Dapp=web( |$)", SetupPath: "/opt/web", PidPath: "/opt/web/run/web.pid",
		ConfigPath: "/opt/web/etc", LogPath: "/opt/web/log", Account: "web",
		StartCmd: "./start.sh", StopCmd: "./stop.sh", RestartCmd: "./restart.sh", ReloadCmd: "./reload.sh", KillCmd: "./kill.sh",
		VersionCmd: "./version.sh", HealthCmd: "./health.sh", Shell: "sh", Env: map[string]string{"LANG": "C.UTF-8"},
		NoProfile: true, RestartInPlace: true, HealthRestart: true,
		Type: "resident", OpTimeoutMS: 60_000, StartCheckBeginMS: 5_000, StartCheckEndMS: 9_000, StopCheckMS: 5_000, StopGraceMS: 30_000,
		StartRetries: 4, StartIntervalMS: 10_000, CycleTimeMS: 3_600_000, Crontab: "0 3 * * *", Instances: 2, CPULimit: 50, MemoryLimit: 25.5,
	}
}

func fullResult(at time.Time) Result {
	return Result{
		Item: 4, Code: CodeCheckFailed, Reason: ReasonCheckFailed, Refusal: RefusalSuperseded, Message: "start: process not found; exit=0", Warnings: []string{"limits are not enforced"},
		Status: &Status{
			At: at, UTCOffset: 28_800, Running: true, Supervised: true, Phase: "running", AgentID: "agent-7",
			PID: 4711, PIDs: []int{4711, 4712}, Instances: 2, TreeCPU: 14.5, TreeMemoryBytes: 2 << 30, Command: "java -jar web.jar", Stat: "S", Threads: 31, StartedAt: at, ElapsedMS: 1_500, UserMS: 900, SystemMS: 100,
			CPU: 12.5, CPUAverage: 3.25, MemoryBytes: 1 << 30, MemoryPercent: 6.5, HostFreeKB: 8 << 20,
			Version: "2.1", Health: "ok", RegisteredAt: at, LastStartedAt: at, Failures: 2, NextRetryAt: at,
			NextRunAt: at, FrozenUntil: at, Restarts: 7, LastExit: &LastExit{At: at, Known: true, Code: 1, Signal: "SIGKILL", Why: "limit"}, Evidence: "pid file is stale",
		},
		AcceptedAt: at, StartedAt: at, FinishedAt: at,
	}
}

func TestSamplesLeaveNoFieldOut(t *testing.T) {
	t.Parallel()
	all := samples(t)
	if len(all) != messageTypes {
		t.Errorf("%d samples, %d message types", len(all), messageTypes)
	}
	for _, m := range all {
		requireFull(t, m.MessageType(), reflect.ValueOf(m).Elem())
	}
	requireFull(t, "spec", reflect.ValueOf(fullSpec()))
	requireFull(t, "result", reflect.ValueOf(fullResult(time.Unix(1, 0))))
}

// requireFull fails for fields that are zero, which a fixture would not hold.
func requireFull(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		requireFull(t, path, v.Elem())
		return
	}
	if _, isTime := reflect.TypeAssert[time.Time](v); v.Kind() == reflect.Struct && !isTime {
		for i := range v.NumField() {
			requireFull(t, path+"."+v.Type().Field(i).Name, v.Field(i))
		}
		return
	}
	if v.IsZero() {
		t.Errorf("%s is not set", path)
	}
}

// TestRecordedMessagesKeepTheirMeaning compares each message with its recorded form, which
// agents and servers of other builds send and read.
func TestRecordedMessagesKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for _, m := range samples(t) {
		name := strings.TrimPrefix(m.MessageType(), "procfleet.agent.v1.")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "v1", name+".json")
			if *record {
				var pretty bytes.Buffer
				if err := errors.Join(json.Indent(&pretty, data, "", "  "), os.WriteFile(file, pretty.Bytes(), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(meaning(t, recorded), meaning(t, data)); diff != "" {
				t.Errorf("sent otherwise (-recorded +now):\n%s", diff)
			}
			read := decodeAny(t, recorded)
			if c, ok := read.(*Command); ok {
				requireSpec(t, c.Specs[0])
				c.Specs = m.(*Command).Specs // recorded with indentation
			}
			if diff := cmp.Diff(m, read); diff != "" {
				t.Errorf("read otherwise (-sample +recorded):\n%s", diff)
			}
		})
	}
}

func decodeAny(t *testing.T, data []byte) Message {
	t.Helper()
	kind, err := PeekType(data)
	if err != nil {
		t.Fatal(err)
	}
	m := newMessage(kind)
	if m == nil {
		t.Fatalf("unknown type %q", kind)
	}
	if err := Decode(data, kind, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func requireSpec(t *testing.T, raw json.RawMessage) {
	t.Helper()
	var spec Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(meaning(t, raw), meaning(t, again)); diff != "" {
		t.Errorf("spec changed (-recorded +now):\n%s", diff)
	}
}

func meaning(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, m := range samples(t) {
		data, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		more := append([]byte(`{"undefined":{"deep":[1,2]},`), data[1:]...)
		if diff := cmp.Diff(m, decodeAny(t, more)); diff != "" {
			t.Errorf("%s (-sent +read):\n%s", m.MessageType(), diff)
		}
	}
}

func TestMessagesOfOtherTypesAreRefused(t *testing.T) {
	t.Parallel()
	err := Decode([]byte(`{"type":"procfleet.agent.v2.command"}`), TypeCommand, &Command{})
	if err == nil || !strings.Contains(err.Error(), `unexpected message type: "procfleet.agent.v2.command", want "procfleet.agent.v1.command"`) {
		t.Errorf("got %v", err)
	}
	big := append([]byte(`{"type":"`), bytes.Repeat([]byte("x"), MaxMessageBytes)...)
	if Decode(big, TypeCommand, &Command{}) == nil {
		t.Error("Decode reads messages over the limit")
	}
	if _, err := PeekType(big); err == nil {
		t.Error("PeekType reads messages over the limit")
	}
}
