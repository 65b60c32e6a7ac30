package agentlink

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// fill sets every field of a struct to a nonzero value, so that the test detects a field that a
// translation omits.
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
	data, err := EncodeSpec(&spec)
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

// The status has the same fields in agentproto and in procfleet; the translation must preserve
// all of them.
func TestAStatusComesFromAgentsWhole(t *testing.T) {
	t.Parallel()
	wire := filled[agentproto.Status]()
	want, err := json.Marshal(wire)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(StatusOf(&wire))
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
			got := ResultOf(&tt.wire)
			if got.Code != tt.code || got.Reason != tt.reason || got.Item != 3 || got.Rank != procfleet.RankAgent || !got.FinishedAt.Equal(when) {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("an agent tells superseded operations from other refused ones", func(t *testing.T) {
		t.Parallel()
		for reason, want := range map[string]procfleet.Refusal{"refused": procfleet.RefusalSuperseded, "command_failed": ""} {
			if got := ResultOf(&agentproto.Result{Code: 65535, Reason: reason, Refusal: "superseded"}); got.Refusal != want {
				t.Errorf("%s: refusal %q, want %q", reason, got.Refusal, want)
			}
		}
		if got := ResultOf(&agentproto.Result{Code: 65535, Reason: "refused", Refusal: "of next year"}); got.Refusal != "" {
			t.Errorf("refusal %q", got.Refusal)
		}
	})
	t.Run("texts are bounded", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("é", procfleet.MaxMessage)
		got := ResultOf(&agentproto.Result{Code: 65535, Reason: "command_failed", Message: "x" + long, Warnings: []string{long + "\xff"}})
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
		q := RequestBatch{requester: &Requester{prefix: "_INBOX.x."}, id: id}
		gotID, got, ok := parseReplyToken(strings.TrimPrefix(q.ReplySubject(host, try), "_INBOX.x."))
		if !ok || gotID != id || got.Host != host || got.Try != try {
			t.Fatalf("got %d %+v, %v", gotID, got, ok)
		}
	})
}
