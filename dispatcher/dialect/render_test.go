package dialect

import (
	"bytes"
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// content is the part of a published result that describes a process. Process is present
// if the agent reported the state of the process. Value is present for every action but
// status, and for a status action without a reported state.
type content struct {
	IP      string `json:"ip,omitempty"`
	AgentID string `json:"bk_agent_id,omitempty"`
	// UTCTime is the host's local time, in spite of its name; UTCTime2 is UTC.
	UTCTime  string `json:"utctime,omitempty"`
	UTCTime2 string `json:"utctime2,omitempty"`
	Timezone *int   `json:"timezone,omitempty"` // hours east of UTC

	Value   []contentValue   `json:"value,omitempty"`
	Process []contentProcess `json:"process,omitempty"`
	Ext     *contentExt      `json:"ext,omitempty"`
}

type contentValue struct {
	FuncID     string `json:"funcID"`
	InstanceID string `json:"instanceID"`
	ProcName   string `json:"procName"`
	SetupPath  string `json:"setupPath"`
	Result     string `json:"result"`
	IsAuto     *bool  `json:"isAuto,omitempty"`
	AgentID    string `json:"bk_agent_id,omitempty"`
}

type contentProcess struct {
	ProcName string            `json:"procname"`
	Instance []contentInstance `json:"instance"`
}

type contentInstance struct {
	Cmdline       string  `json:"cmdline"`
	ProcessName   string  `json:"processName"`
	Version       string  `json:"version"`
	Health        string  `json:"health"`
	IsAuto        bool    `json:"isAuto"`
	CPUUsage      float64 `json:"cpuUsage"`
	CPUUsageAve   float64 `json:"cpuUsageAve"`
	PhyMemUsage   float64 `json:"phyMemUsage"`
	UsePhyMem     int64   `json:"usePhyMem"` // bytes
	DiskSize      int64   `json:"diskSize"`
	PID           int     `json:"pid"`
	StartTime     string  `json:"startTime"`
	Stat          string  `json:"stat"`
	UTime         string  `json:"utime"` // seconds
	STime         string  `json:"stime"` // seconds
	FreeVMem      string  `json:"freeVMem"`
	ThreadCount   int     `json:"threadCount"`
	ElapsedTime   int64   `json:"elapsedTime"` // seconds
	RegisterTime  int64   `json:"register_time"`
	LastStartTime int64   `json:"last_start_time"`
	ReportTime    int64   `json:"report_time"`
}

// contentExt has the data for which the published shape has no member.
type contentExt struct {
	Warnings    []string  `json:"warnings,omitempty"`
	State       string    `json:"state,omitempty"`
	Failures    int       `json:"failures,omitempty"`
	NextRetryAt time.Time `json:"nextRetryAt,omitzero"`
	Evidence    string    `json:"evidence,omitempty"`
	PIDs        []int     `json:"pids,omitempty"` // of all instances, if there are several
	Instances   int       `json:"instances,omitempty"`
	TreeCPU     float64   `json:"treeCpu,omitempty"` // percent of the host, with descendants
	TreeMem     int64     `json:"treeMem,omitempty"` // bytes, with descendants
	NextRunAt   time.Time `json:"nextRunAt,omitzero"`
	FrozenUntil time.Time `json:"frozenUntil,omitzero"`
	Restarts    int       `json:"restarts,omitempty"`

	LastExit *procfleet.LastExit `json:"lastExit,omitempty"`
}

// The hand-written encoders must produce the same JSON as encoding/json does for the struct that
// declares the form, with every member set, with none, and with one at a time.
func TestRenderedMembersAreThoseThatAreDeclared(t *testing.T) {
	t.Parallel()
	t.Run("content", contentsAreThoseThatAreDeclared)
	t.Run("result", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(n *v1.Result) rendered { return renderResult(nil, n) })
	})
	t.Run("status", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(s *procfleet.ProcessStatus) rendered { return renderStatus(nil, s) })
	})
}

// A content is rendered from the result of an item. Decoded into the declared shape, which
// has no other members, and encoded by encoding/json it must be the same text.
func contentsAreThoseThatAreDeclared(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, it := range itemResults(t) {
		got := (&describer{}).content(nil, &it, "a \"message\"")
		var declared content
		decoder := json.NewDecoder(bytes.NewReader(got))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&declared); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		want, err := appendJSON(nil, declared)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("rendered %s\ndeclared %s", got, want)
		}
		note(seen, reflect.ValueOf(declared))
	}
	for _, shape := range []reflect.Type{
		reflect.TypeFor[content](), reflect.TypeFor[contentValue](), reflect.TypeFor[contentProcess](),
		reflect.TypeFor[contentInstance](), reflect.TypeFor[contentExt](),
	} {
		for field := range shape.Fields() {
			if name := shape.Name() + "." + field.Name; !seen[name] {
				t.Errorf("no result sets %s", name)
			}
		}
	}
}

// itemResults returns results of two actions with every member of a status set, with
// none, with one at a time, and without a status.
func itemResults(t *testing.T) []procfleet.ItemResult {
	t.Helper()
	var whole procfleet.ProcessStatus
	set(t, reflect.ValueOf(&whole).Elem())
	whole.PID = 4437
	statuses := []*procfleet.ProcessStatus{nil, {}, {Running: true}, &whole}
	for i := range reflect.TypeFor[procfleet.ProcessStatus]().NumField() {
		for _, running := range []bool{false, true} {
			one := procfleet.ProcessStatus{Running: running}
			set(t, reflect.ValueOf(&one).Elem().Field(i))
			statuses = append(statuses, &one)
		}
	}
	var all []procfleet.ItemResult
	for _, status := range statuses {
		for _, action := range []procfleet.Action{procfleet.ActionStatus, procfleet.ActionStart} {
			bare := procfleet.ItemResult{Spec: &procfleet.ProcessSpec{}, Item: procfleet.Item{Action: action}, Result: procfleet.Result{Status: status}}
			full := bare
			full.Spec = &procfleet.ProcessSpec{FuncID: "f<&>", InstanceID: "i", ProcName: "p", SetupPath: "/p", Name: "n"}
			full.Item.Target = procfleet.Target{Host: procfleet.Host{Cloud: 3, Addr: netip.MustParseAddr("fd00::1")}, AgentID: "a"}
			full.Result.Warnings = []string{"w", "x"}
			all = append(all, bare, full)
		}
	}
	return all
}

// note records the nonzero fields of v and of all nested values.
func note(seen map[string]bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			note(seen, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			note(seen, v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for field, value := range v.Fields() {
			if !value.IsZero() {
				seen[v.Type().Name()+"."+field.Name] = true
			}
			note(seen, value)
		}
	default:
	}
}

func sameAsDeclared[T any](t *testing.T, render func(*T) rendered) {
	t.Helper()
	values := []T{*new(T), *new(T)}
	set(t, reflect.ValueOf(&values[1]).Elem())
	for i := range reflect.TypeFor[T]().NumField() {
		var one T
		set(t, reflect.ValueOf(&one).Elem().Field(i))
		values = append(values, one)
	}
	for i := range values {
		want, err := appendJSON(nil, values[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := render(&values[i]); string(got) != string(want) {
			t.Errorf("rendered %s\ndeclared %s", got, want)
		}
	}
}

// set sets v and all nested values to nonzero values.
func set(t *testing.T, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 11, 21, 5, 35, 22, 123_400_000, time.UTC)))
		return
	}
	if v.Type() == reflect.TypeFor[procfleet.Host]() {
		v.Set(reflect.ValueOf(procfleet.Host{Cloud: 3, Addr: netip.MustParseAddr("fd00::1")}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(`a "text" of ` + v.Type().Name())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-4437)
	case reflect.Float64:
		v.SetFloat(12.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(t, v.Index(0))
		set(t, v.Index(1))
	case reflect.Struct:
		for _, field := range v.Fields() {
			set(t, field)
		}
	default:
		t.Fatalf("no value for a %v", v.Type())
	}
}

func FuzzRenderedText(f *testing.F) {
	for _, s := range []string{
		"", "plain", `"\`, "\x00\b\f\n\r\t\x1f\x7f", "<&>", "é 世界 😀", "\u2028\u2029\ufffd", "\xff", "\xe4\xb8", "a\xf0\x9f\x98", "\xed\xa0\x80",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := appendJSON(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		if got := rendered(nil).quote(s); string(got) != string(want) {
			t.Errorf("%q is rendered %s, want %s", s, got, want)
		}
		inside, err := appendJSON([]byte("before"), string(want))
		if err != nil {
			t.Fatal(err)
		}
		if got := rendered("before").quote(s).quoteFrom(len("before")); string(got) != string(inside) {
			t.Errorf("%q within a text is rendered %s, want %s", s, got, inside)
		}
	})
}

func FuzzRenderedFloat(f *testing.F) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -1.5, 1e-6, 9e-7, 1e-7, 1.5e-12, 1e20, 1e21, 1e100, math.MaxFloat64, math.SmallestNonzeroFloat64} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return // encoding/json rejects null here
		}
		want, err := appendJSON(nil, map[string]float64{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		if got := append(rendered("{").float("v", v), '}'); string(got) != string(want) {
			t.Errorf("rendered %s, want %s", got, want)
		}
	})
}
