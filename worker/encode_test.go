package worker

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// fill sets every field of a struct to a value that is not its zero value, so
// that a field which a translation forgets shows.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
			return
		}
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case reflect.String:
		v.SetString("text " + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) * int64(time.Millisecond))
	case reflect.Float64:
		v.SetFloat(float64(*n) / 2)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Uint8:
		v.SetUint(uint64('0' + *n%10))
	default:
		panic("fill does not know " + v.Type().String())
	}
}

func filled[T any]() T {
	var value T
	n := 0
	fill(reflect.ValueOf(&value).Elem(), &n)
	return value
}

// A wire spec made from a full model spec must have every field set, and
// survive JSON.
func TestASpecReachesAgentsWhole(t *testing.T) {
	t.Parallel()
	spec := filled[procfleet.ProcessSpec]()
	data, err := encodeSpec(&spec)
	if err != nil {
		t.Fatal(err)
	}
	var wire agentproto.Spec
	if err := json.Unmarshal(data, &wire); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wireSpec(&spec), wire); diff != "" {
		t.Errorf("JSON changed it:\n%s", diff)
	}
	for field, value := range reflect.ValueOf(wire).Fields() {
		if value.IsZero() {
			t.Errorf("field %s is not filled in", field.Name)
		}
	}
	if wire.Key != spec.Key() || wire.StartCmd != spec.Control.Start || wire.OpTimeoutMS != spec.Alive.OpTimeout.Std().Milliseconds() {
		t.Errorf("wire spec is %+v", wire)
	}
}

// The status has the same fields on both sides; what goes through the
// translation must come out whole.
func TestAStatusComesFromAgentsWhole(t *testing.T) {
	t.Parallel()
	wire := filled[agentproto.Status]()
	want, err := json.Marshal(wire)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(processStatus(&wire))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("status changed:\n%s", diff)
	}
}

func TestAgentsResults(t *testing.T) {
	t.Parallel()
	when := time.Unix(1, 0).UTC()
	for _, tt := range []struct {
		name   string
		wire   agentproto.Result
		code   procfleet.Code
		reason procfleet.Reason
	}{
		{"success", agentproto.Result{Code: 0, Reason: "succeeded", Message: "success"}, 0, procfleet.ReasonSucceeded},
		{"already running", agentproto.Result{Code: 828, Reason: "already_running"}, 828, procfleet.ReasonAlreadyRunning},
		{"not running", agentproto.Result{Code: 829, Reason: "not_running"}, 829, procfleet.ReasonNotRunning},
		{"failed", agentproto.Result{Code: 65535, Reason: "command_failed"}, 65535, procfleet.ReasonCommandFailed},
		{"check failed", agentproto.Result{Code: 836, Reason: "check_failed"}, 836, procfleet.ReasonCheckFailed},
		{"unknown action", agentproto.Result{Code: 832, Reason: "refused"}, 832, procfleet.ReasonRefused},
		{"no journal", agentproto.Result{Code: 117, Reason: "refused"}, 117, procfleet.ReasonRefused},
		{"zero with a bad reason is no success", agentproto.Result{Code: 0, Reason: "refused"}, 65535, procfleet.ReasonCommandFailed},
		{"a reason of next year is no success", agentproto.Result{Code: 0, Reason: "shiny"}, 65535, procfleet.ReasonCommandFailed},
		{"a server's reason is not an agent's", agentproto.Result{Code: 117, Reason: "unreachable"}, 65535, procfleet.ReasonCommandFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.wire.Item, tt.wire.FinishedAt = 3, when
			got := agentResult(&tt.wire)
			if got.Code != tt.code || got.Reason != tt.reason || got.Item != 3 || got.Rank != procfleet.RankAgent || !got.FinishedAt.Equal(when) {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("texts are bounded", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("é", procfleet.MaxMessage)
		got := agentResult(&agentproto.Result{Code: 65535, Reason: "command_failed", Message: "x" + long, Warnings: []string{long + "\xff"}})
		if len(got.Message) > procfleet.MaxMessage || len(got.Warnings[0]) > maxWarning {
			t.Errorf("message has %d bytes, warning %d", len(got.Message), len(got.Warnings[0]))
		}
		for _, text := range append(got.Warnings, got.Message) {
			if strings.ToValidUTF8(text, "") != text {
				t.Error("text is not UTF-8")
			}
		}
	})
}

func TestAReplySubjectLeadsBackToItsRequest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint64().Draw(t, "id")
		host, try := rapid.IntRange(0, 1<<20).Draw(t, "host"), rapid.IntRange(0, 1<<20).Draw(t, "try")
		q := asking{asker: &asker{prefix: "_INBOX.x."}, id: id}
		gotID, got, err := parseReplyToken(strings.TrimPrefix(q.replySubject(host, try), "_INBOX.x."))
		if err != nil || gotID != id || got.host != host || got.try != try {
			t.Fatalf("got %d %+v, %v", gotID, got, err)
		}
	})
}

func FuzzDecodeResults(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.results","task":"GSETASK:20260101000000:1","host":"0:10.0.0.1","results":[{"item":-1,"code":0,"reason":"succeeded"}]}`), "procfleet.result.s.0")
	f.Add([]byte(`{"type":"procfleet.agent.v1.results","task":"GSETASK:20260101000000:1","host":"0:10.0.0.1","results":[{"item":1,"code":0,"reason":"succeeded"}]}`), "procfleet.result.s.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		decoded, err := decodeResults(&nats.Msg{Subject: subject, Data: data})
		if err != nil {
			return
		}
		for _, r := range decoded.results {
			if r.Item < 0 || r.Code == 0 && r.Reason != procfleet.ReasonSucceeded || len(r.Message) > procfleet.MaxMessage {
				t.Errorf("result %+v got through", r)
			}
		}
	})
}

func FuzzDecodePresence(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.presence","host":"0:10.0.0.1","instance":"i"}`), "procfleet.presence.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		_, a, err := decodePresence(data, subject)
		if err == nil && (a.Host.IsZero() || a.Instance == "") {
			t.Errorf("announcement %+v got through", a)
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.processes","host":"0:10.0.0.1","instance":"i","number":1,"processes":[{"key":"a:b","namespace":"a","name":"b","desired":"up","status":{"phase":"running"}}]}`), "procfleet.processes.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		now := time.Unix(1, 0)
		r, err := decodeReport(data, subject, now)
		if err != nil {
			return
		}
		if r.Host.IsZero() || r.Instance == "" || r.Number <= 0 || r.At.After(now.Add(reportAhead)) {
			t.Errorf("report %+v got through", r)
		}
		for _, p := range r.Processes {
			if p.Key == "" || len(p.Key) > procfleet.MaxKey || (p.Namespace == "") != (p.Name == "") || len(p.Status.Phase) > maxWord {
				t.Errorf("process %+v got through", p)
			}
		}
	})
}

func BenchmarkDecodeReport(b *testing.B) {
	at := time.Date(2026, 11, 21, 8, 0, 0, 123000000, time.UTC)
	m := agentproto.Processes{
		Header: agentproto.Header{Type: agentproto.TypeProcesses, ID: "7d5fa1f6-8f0e-4a53-9f43-1b2f0a4f3a11", Sent: at},
		Host:   "0:10.0.0.1", Instance: "0b7a3c1e-55a1-4c7e-8a5c-6f4e7f0c2d19", Number: at.UnixMicro(),
	}
	for i := range 3 {
		name := "web_" + strconv.Itoa(i)
		m.Processes = append(m.Processes, agentproto.ManagedProcess{
			Key: "shop:" + name, Namespace: "shop", Name: name, ProcName: "java", Desired: agentproto.DesiredUp,
			Status: agentproto.Status{
				At: at, UTCOffset: 28_800, Running: true, Supervised: true, Phase: "running", PID: 4711, Stat: "S", Threads: 31,
				StartedAt: at, ElapsedMS: 1_500_000, UserMS: 900, SystemMS: 100, CPU: 12.5, CPUAverage: 3.25,
				MemoryBytes: 1 << 30, MemoryPercent: 6.5, HostFreeKB: 8 << 20, RegisteredAt: at, LastStartedAt: at,
			},
		})
	}
	data, err := agentproto.Encode(&m)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeReport(data, "procfleet.processes.0", at); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzDecodeSettingsAsk(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.settings","host":"0:10.0.0.1","instance":"i"}`), "procfleet.settings.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		if _, host, err := decodeSettingsAsk(data, subject); err == nil && host.IsZero() {
			t.Error("a question of no host got through")
		}
	})
}
