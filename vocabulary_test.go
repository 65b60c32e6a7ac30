package procfleet

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseHostAcceptsExactlyWhatStringWrites(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0:10.0.0.1":        "0:10.0.0.1",
		"3:fd00::1":         "3:fd00::1",
		"3:FD00:0:0::0001":  "3:fd00::1",
		"7:::ffff:10.0.0.1": "7:10.0.0.1",
	} {
		h, err := ParseHost(text)
		if err != nil || h.String() != want {
			t.Errorf("ParseHost(%q) = %q, %v; want %q", text, h, err, want)
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h {
			t.Errorf("%q does not survive a round trip: %v, %v", text, again, err)
		}
	}
}

func TestParseHostNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.1":                       "<cloud area>:<ip>",
		"x:10.0.0.1":                     "cloud area",
		"-1:10.0.0.1":                    "negative",
		"0:10.0.0":                       "neither an IPv4 nor an IPv6",
		"0:fe80::1%eth0":                 "zone",
		"0:0.0.0.0":                      "not the address of one host",
		"0:" + strings.Repeat("9", 1000): "neither",
	} {
		_, err := ParseHost(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseHost(%.20q) = %v; want a message with %q", text, err, want)
		} else if len(err.Error()) > 400 {
			t.Errorf("ParseHost(%.20q): message of %d bytes repeats foreign text unbounded", text, len(err.Error()))
		}
	}
}

func TestTaskIDIsTheNumber(t *testing.T) {
	t.Parallel()
	n := Number(time.Date(2026, 11, 21, 5, 35, 22, 1042_000, time.UTC).UnixMicro())
	id := n.TaskID()
	if id != "GSETASK:20261121053522:1042" {
		t.Fatalf("TaskID() = %q", id)
	}
	if back, err := id.Number(); err != nil || back != n {
		t.Fatalf("Number() = %d, %v; want %d", back, err, n)
	}
	for _, bad := range []string{
		"", "GSETASK:", "GSETASK:20261121053522:", "GSETASK:20261121053522:01042", "GSETASK:20261121053522:1000000", "GSETASK:20261321053522:1",
		"TASK:20261121053522:1",
		"GSETASK:20260230053522:1", "GSETASK:20261121053560:1", "GSETASK:2026112105352:1", "GSETASK:202611210535220:1", "GSETASK:2026112105352x:1", "GSETASK:20261121053522:+1", "GSETASK:20261121053522:1:1",
	} {
		if id, err := ParseTaskID(bad); err == nil {
			t.Errorf("ParseTaskID(%q) = %q, want an error", bad, id)
		}
	}
}

func TestEveryReasonLeadsToAFinalState(t *testing.T) {
	t.Parallel()
	for _, r := range []Reason{
		ReasonSucceeded, ReasonAlreadyRunning, ReasonNotRunning, ReasonCommandFailed, ReasonCheckFailed,
		ReasonRefused, ReasonUnreachable, ReasonTimedOut, ReasonCancelled, ReasonRejected, "of next year",
	} {
		if s := r.State(); !s.Final() {
			t.Errorf("reason %q leads to %q, which is not final", r, s)
		}
	}
	if n := len(States()); n != 9 {
		t.Errorf("States() has %d states, want 9", n)
	}
}

func TestDurationReadsTextAndSeconds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{`"90s"`: 90 * time.Second, `5`: 5 * time.Second, `0.25`: 250 * time.Millisecond, `null`: time.Hour} {
		d := Duration(time.Hour)
		if err := json.Unmarshal([]byte(text), &d); err != nil || d.Std() != want {
			t.Errorf("%s = %v, %v; want %v", text, d, err, want)
		}
	}
	for _, bad := range []string{`"ninety"`, `true`, `{}`, `1e300`, `[]`} {
		var d Duration
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s was read as %v", bad, d)
		}
	}
}

func TestProcessKey(t *testing.T) {
	t.Parallel()
	for want, spec := range map[string]ProcessSpec{
		"ns:nginx":      {Namespace: "ns", Name: "nginx", ValueKey: "k"},
		"k":             {ValueKey: "k", SetupPath: "/a", ProcName: "p"},
		"/a/p":          {SetupPath: "/a", ProcName: "p"},
		"/b/p":          {SetupPath: "/b/", ProcName: "p"},
		`C:\tools\p`:    {SetupPath: `C:\tools`, ProcName: "p"},
		`C:\tools2\exe`: {SetupPath: `C:\tools2\`, ProcName: "exe"},
	} {
		if got := spec.Key(); got != want {
			t.Errorf("Key() = %q, want %q", got, want)
		}
	}
}

// nginx is a spec that every action accepts.
func nginx() ProcessSpec {
	s := DefaultSpec()
	s.Namespace, s.Name, s.ProcName, s.SetupPath = "web", "nginx", "nginx", "/usr/sbin"
	s.Control.Start, s.Control.Reload = "nginx", "nginx -s reload"
	return s
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	valid := nginx()
	for _, a := range Actions() {
		if err := valid.Validate(a); err != nil {
			t.Errorf("%s: a valid spec is refused: %v", a, err)
		}
	}
	for field, spoil := range map[string]func(*ProcessSpec){
		"alive.op_timeout":     func(s *ProcessSpec) { s.Alive.OpTimeout = Seconds(86401) },
		"alive.stop_check":     func(s *ProcessSpec) { s.Alive.StopCheck = -1 },
		"alive.stop_grace":     func(s *ProcessSpec) { s.Alive.StopGrace = Seconds(3601) },
		"alive.start_retries":  func(s *ProcessSpec) { s.Alive.StartRetries = -1 },
		"alive.type":           func(s *ProcessSpec) { s.Alive.Type = "daemon" },
		"alive.cycle_time":     func(s *ProcessSpec) { s.Alive.CycleTime = Seconds(40_000_000) },
		"control.shell":        func(s *ProcessSpec) { s.Control.Shell = "fish" },
		"control.start":        func(s *ProcessSpec) { s.Control.Start = "" },
		"control.stop":         func(s *ProcessSpec) { s.Control.Stop = strings.Repeat("x", MaxCommand+1) },
		"limits.cpu":           func(s *ProcessSpec) { s.Limits.CPU = -1 },
		"namespace":            func(s *ProcessSpec) { s.Name = "" },
		"proc_name":            func(s *ProcessSpec) { s.ProcName = "a\x00b" },
		"account":              func(s *ProcessSpec) { s.Account = "\xff" },
		"setup_path":           func(s *ProcessSpec) { s.SetupPath = "bin" },
		"pid_path":             func(s *ProcessSpec) { s.PidPath = "run/x.pid" },
		"labels":               func(s *ProcessSpec) { s.Labels = map[string]json.RawMessage{"a": json.RawMessage(`{}`)} },
		"alive.start_interval": func(s *ProcessSpec) { s.Alive.StartInterval = 0 },
	} {
		s := nginx()
		spoil(&s)
		err := s.Validate(ActionStart)
		invalid, ok := errors.AsType[*FieldError](err)
		if !ok || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestArgsPatternIsARegularExpressionOfBoundedSize(t *testing.T) {
	t.Parallel()
	for pattern, problem := range map[string]string{
		"":                             "",
		"-Dapp=web( |$)":               "",
		`^\S+ --port 80(80)?\b`:        "",
		strings.Repeat("x", MaxPath):   "",
		strings.Repeat("x{1000}", 4):   "",
		"--port (80":                   `is not a regular expression (RE2): missing closing ): "--port (80"`,
		`(?<=--port )80`:               "invalid named capture",
		`(\w+) \1`:                     "invalid escape sequence",
		"x{1001}":                      "invalid repeat count",
		strings.Repeat("x{1000}", 5):   "repeats too much: with every {n} written out it has",
		strings.Repeat("x", MaxPath+1): "is 4097 bytes long",
		"\xff":                         "is not valid UTF-8",
		"a\x00b":                       "NUL",
	} {
		s := nginx()
		s.ArgsPattern = pattern
		err := s.Validate(ActionStart)
		if invalid, ok := errors.AsType[*FieldError](err); ok != (problem != "") ||
			ok && (invalid.Field != "args_pattern" || !strings.Contains(invalid.Problem, problem) || len(invalid.Problem) > 500) {
			t.Errorf("%.40q: got %v, want %q", pattern, err, problem)
		}
	}
}

func TestInMovesEveryFieldBelowItsParent(t *testing.T) {
	t.Parallel()
	o := Operation{Action: "explode", Process: nginx()}
	o.Process.Alive.Type = "daemon"
	err := In("operations[1]", o.Validate())
	for _, want := range []string{"operations[1].action: ", "operations[1].process.alive.type: ", "operations[1].hosts: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
	}
}

func TestAnOperationOnWhatIsRegisteredNeedsNothingButItsName(t *testing.T) {
	t.Parallel()
	valid := Operation{Action: ActionStart, Registered: true, Process: ProcessSpec{Namespace: "web", Name: "nginx"}}
	for name, err := range map[string]error{"strict": valid.Validate(), "bounds": valid.ValidateBounds()} {
		if err != nil {
			t.Errorf("%s: a valid operation is refused: %v", name, err)
		}
	}
	for field, spoil := range map[string]func(*Operation){
		"process.namespace": func(o *Operation) { o.Process.Namespace = "" },
		"process.name":      func(o *Operation) { o.Process.Name = strings.Repeat("x", MaxKey+1) },
		"process":           func(o *Operation) { o.Process.Control.Start = "./start.sh" },
		"action":            func(o *Operation) { o.Action = "explode" },
	} {
		o := valid
		spoil(&o)
		err := o.Validate()
		if invalid, ok := errors.AsType[*FieldError](err); !ok || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
		if err := o.ValidateBounds(); (err == nil) != (field == "action") {
			t.Errorf("%s: bounds say %v", field, err)
		}
	}
}

func TestBoundsLeaveAnOperationThatCannotSucceedToItsHosts(t *testing.T) {
	t.Parallel()
	o := Operation{Action: "5", Process: nginx(), Targets: []Target{{Label: "0:"}}}
	o.Process.SetupPath, o.Process.Control.Start = "bin", ""
	if err := o.ValidateBounds(); err != nil {
		t.Error(err)
	}
	o.Targets = nil
	if err := o.ValidateBounds(); err == nil {
		t.Error("an operation on no host at all passes")
	}
}

func TestBudgetCoversEveryPhaseOfAnAction(t *testing.T) {
	t.Parallel()
	s := nginx()
	if s.Budget(ActionRestart) < 2*s.Alive.OpTimeout.Std()+s.Alive.StopCheck.Std()+s.Alive.StartCheckEnd.Std() {
		t.Errorf("restart may take longer than its budget of %v", s.Budget(ActionRestart))
	}
	if s.Budget(ActionStatus) >= s.Budget(ActionStart) {
		t.Error("a look is given as much time as a start")
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add("0:10.0.0.1")
	f.Add("3:fd00::1")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ParseHost(text)
		if err != nil {
			return
		}
		if again, err := ParseHost(h.String()); err != nil || again != h {
			t.Errorf("%q → %q → %v, %v", text, h, again, err)
		}
	})
}

func TestNoCallerSaysThatAProcessIsUnregistered(t *testing.T) {
	t.Parallel()
	s := DefaultSpec()
	s.Namespace, s.Name, s.ProcName, s.Unregistered = "ns", "web", "nginx", true
	if one, ok := errors.AsType[*FieldError](s.ValidateBounds()); !ok || one.Field != "unregistered" {
		t.Errorf("ValidateBounds() = %v", s.ValidateBounds())
	}
}

func TestCountsSeparateOpenAndFailedItems(t *testing.T) {
	t.Parallel()
	counts := Counts{}
	for _, state := range States() {
		counts[state] = 1
	}
	if counts.Open() != 2 || counts.Failed() != 5 || counts.Total() != len(States()) {
		t.Errorf("of one item in each state %d are open, %d failed, %d in total", counts.Open(), counts.Failed(), counts.Total())
	}
	if State("unknown").Failure() {
		t.Error("an unknown state counts as a failure")
	}
}
