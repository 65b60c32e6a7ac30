package pack

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// fill sets every exported field to a nonzero value, so that the test detects a field that packing
// omits.
func fill(v reflect.Value, salt int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", salt))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(salt))
	case reflect.Float64:
		v.SetFloat(float64(salt) / 8)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), salt)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), salt+i)
		}
	case reflect.Struct:
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(int64(salt), 7).UTC()))
			return
		case procfleet.Host:
			v.Set(reflect.ValueOf(host(salt)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), salt*10+i+1)
		}
	default:
		panic("fill: no rule for " + v.Type().String())
	}
}

func host(n int) procfleet.Host {
	h, err := procfleet.NewHost(procfleet.CloudArea(n), fmt.Sprintf("10.0.0.%d", n%250+1))
	if err != nil {
		panic(err)
	}
	return h
}

func TestEveryFieldOfAResultIsKept(t *testing.T) {
	t.Parallel()
	var r procfleet.Result
	fill(reflect.ValueOf(&r).Elem(), 3)
	r.StartedAt = time.Date(1, 2, 3, 4, 5, 6, 7, time.UTC)
	r.Refusal = "" // the mark of the item has it
	for _, want := range []procfleet.Result{r, {}, {Item: -1, Code: 65535}} {
		got, err := ReadResult(string(Result(&want)))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
}

func TestEveryFieldOfAChunkIsKept(t *testing.T) {
	t.Parallel()
	var it procfleet.Item
	fill(reflect.ValueOf(&it).Elem(), 1)
	it.Spec = 1
	v6, err := procfleet.ParseHost("3:fd00::1")
	if err != nil {
		t.Fatal(err)
	}
	spec := procfleet.DefaultSpec()
	spec.Labels = map[string]json.RawMessage{"a": json.RawMessage(`1`)}
	want := procfleet.Chunk{
		Cloud: 7, First: 300, Specs: []procfleet.ProcessSpec{procfleet.DefaultSpec(), spec},
		Items: []procfleet.Item{it, {}, {Target: procfleet.Target{Host: v6}}, it},
	}
	data, err := Chunk(&want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadChunk(string(data))
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(procfleet.Host{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestFieldsMissingAtTheEndAreZero(t *testing.T) {
	t.Parallel()
	got, err := ReadResult(string(Result(&procfleet.Result{Item: 4, Code: 7})[:3]))
	if err != nil || got.Item != 4 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMarkSaysStateAndRank(t *testing.T) {
	t.Parallel()
	for _, reason := range []procfleet.Reason{
		procfleet.ReasonSucceeded, procfleet.ReasonAlreadyRunning, procfleet.ReasonNotRunning,
		procfleet.ReasonCommandFailed, procfleet.ReasonCheckFailed, procfleet.ReasonRefused,
		procfleet.ReasonUnreachable, procfleet.ReasonTimedOut, "unheard of",
	} {
		for _, rank := range []procfleet.Rank{procfleet.RankServer, procfleet.RankAgent} {
			r := procfleet.Result{Reason: reason, Rank: rank}
			m := MarkOf(&r)
			if m.State() != r.State() || m.Rank() != rank || m.Open() {
				t.Errorf("%s by rank %d: mark %c is %s by rank %d", reason, rank, m, m.State(), m.Rank())
			}
			if again, _ := m.ReplacedBy(&r); again {
				t.Errorf("mark %c is replaced by its own result", m)
			}
			if first, late := Delivered.ReplacedBy(&r); !first || late {
				t.Errorf("%s does not replace delivered, or is late", reason)
			}
		}
	}
	agent := procfleet.Result{Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent}
	for m, want := range map[Mark]bool{Cancelled: false, Rejected: false, Failed: false, Unreachable: true, 'F': true} {
		if replaced, late := m.ReplacedBy(&agent); replaced != want || late != want {
			t.Errorf("agent's result replaces %c: %v, late %v; want %v", m, replaced, late, want)
		}
	}
	for _, s := range procfleet.States() {
		for _, m := range []byte(Marks(s)) {
			if Mark(m).State() != s {
				t.Errorf("mark %c of %s reads as %s", m, s, Mark(m).State())
			}
		}
	}
}

func TestPagesShowEveryItemOnceFailuresFirst(t *testing.T) {
	t.Parallel()
	var alphabet strings.Builder
	for _, s := range procfleet.States() {
		alphabet.WriteString(Marks(s))
	}
	letters := alphabet.String()
	marks := make([]byte, 777)
	for i := range marks {
		marks[i] = letters[rand.IntN(len(letters))]
	}
	var want []int
	for _, s := range procfleet.States() {
		for i, m := range marks {
			if Mark(m).State() == s {
				want = append(want, i)
			}
		}
	}
	for _, limit := range []int{1, 7, 777, 1000} {
		var got []int
		q := taskstore.ResultQuery{Limit: limit}
		for {
			items, next, err := Page(marks, q)
			if err != nil || len(items) > limit {
				t.Fatalf("page of %d: %d items, %v", limit, len(items), err)
			}
			got = append(got, items...)
			if q.Cursor = next; next == "" {
				break
			}
		}
		if !cmp.Equal(got, want) {
			t.Errorf("pages of %d differ", limit)
		}
	}
}

func TestForeignCursorIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []string{"x", "failed", "failed:", "failed:-1", "failed:9", ":1", "failed:1e3", "succeeded:0"} {
		_, _, err := Page([]byte("fps"), taskstore.ResultQuery{Cursor: c, State: procfleet.StateFailed})
		if !errors.Is(err, taskstore.ErrCursor) {
			t.Errorf("cursor %q: %v", c, err)
		}
	}
}

func TestBoundCutsHugeContentAndKeepsUTF8(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("héllo \xff", 40<<10)
	var r procfleet.Result
	fill(reflect.ValueOf(&r).Elem(), 1)
	r.Message, r.Warnings = huge, make([]string, 100_000)
	for i := range r.Warnings {
		r.Warnings[i] = "é"
	}
	for _, text := range []*string{&r.Status.Command, &r.Status.Version, &r.Status.Health, &r.Status.Evidence, &r.Status.Phase, &r.Status.Stat, &r.Status.AgentID, &r.Status.LastExit.Signal, &r.Status.LastExit.Why} {
		*text = huge
	}
	r.Status.PIDs = slices.Repeat([]int{math.MinInt}, procfleet.MaxInstances)
	b := Bound(r)
	packed := Result(&b)
	if len(packed) > procfleet.MaxResult || len(b.Message) > procfleet.MaxMessage || !utf8.ValidString(b.Message) || !utf8.ValidString(b.Status.Command) {
		t.Errorf("packed %d bytes, message %d", len(packed), len(b.Message))
	}
	if len(b.Message) < procfleet.MaxMessage-utf8.UTFMax || r.Status.Command != huge || r.Status.LastExit.Why != huge {
		t.Error("cut too much, or changed the caller's value")
	}
	small := procfleet.Result{Message: "fine", Warnings: []string{"w"}}
	if !cmp.Equal(Bound(small), small) {
		t.Error("a small result was changed")
	}
}

func FuzzReadResult(f *testing.F) {
	var r procfleet.Result
	fill(reflect.ValueOf(&r).Elem(), 3)
	f.Add(Result(&r))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := ReadResult(string(data)); err == nil {
			if _, err := ReadResult(string(Result(&r))); err != nil {
				t.Errorf("what was read cannot be written and read again: %v", err)
			}
		}
	})
}

func FuzzReadChunk(f *testing.F) {
	data, err := Chunk(&procfleet.Chunk{Specs: make([]procfleet.ProcessSpec, 1), Items: make([]procfleet.Item, 3)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ReadChunk(string(data)); err == nil && len(c.Items) > len(data) {
			t.Errorf("%d items from %d bytes", len(c.Items), len(data))
		}
	})
}
