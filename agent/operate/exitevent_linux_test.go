package operate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agent/limits"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestEventOfADeathCarriesExitCodeOrSignal(t *testing.T) {
	t.Parallel()
	before, now := proc.Identity{BootID: "b", PID: 11, Start: 1}, proc.Identity{BootID: "b", PID: 12, Start: 2}
	restarted := supervise.Emit{Notice: supervise.Restarted, Main: supervise.Identity(now)}
	gaveUp := supervise.Emit{Notice: supervise.GivenUp, Main: supervise.Identity(before), Reason: supervise.OutOfRetries}
	replaced := supervise.Emit{Notice: supervise.PIDChanged, Main: supervise.Identity(now), Other: supervise.Identity(before)}
	for _, c := range []struct {
		name    string
		notice  supervise.Emit
		exited  proc.Identity
		exit    *agentproto.LastExit
		message string
		details map[string]any // added to those of an unknown exit
	}{
		{"exit code", restarted, before, &agentproto.LastExit{Known: true, Code: 3}, "the process exited with code 3 and was started again, pid 12", map[string]any{"exit_code": 3}},
		{"exit code 0", restarted, before, &agentproto.LastExit{Known: true}, "the process exited with code 0 and was started again, pid 12", map[string]any{"exit_code": 0}},
		{"signal", restarted, before, &agentproto.LastExit{Known: true, Signal: "SIGSEGV"}, "the process was killed by SIGSEGV and was started again, pid 12", map[string]any{"signal": "SIGSEGV"}},
		{
			"out of memory", restarted, before, &agentproto.LastExit{Known: true, Signal: "SIGKILL", Why: "out of memory"},
			"the process was killed by SIGKILL (out of memory) and was started again, pid 12",
			map[string]any{"signal": "SIGKILL"},
		},
		{"unknown", restarted, before, &agentproto.LastExit{}, "the process had ended and was started again, pid 12", nil},
		{"reboot", restarted, before, &agentproto.LastExit{Why: "reboot"}, "the process had ended and was started again, pid 12", nil},
		{"never ran", restarted, proc.Identity{}, nil, "the process had ended and was started again, pid 12", nil},
		{"of another process", restarted, now, &agentproto.LastExit{Known: true, Code: 3}, "the process had ended and was started again, pid 12", nil},
		{"given up", gaveUp, before, &agentproto.LastExit{Known: true, Code: 3}, "pid 11 exited with code 3; 5 attempts in a row to keep the process alive failed", map[string]any{"exit_code": 3}},
		{"given up, unknown", gaveUp, before, &agentproto.LastExit{}, "5 attempts in a row to keep the process alive failed", nil},
		{"replaced", replaced, before, &agentproto.LastExit{Known: true}, "pid 12 replaced pid 11, which exited with code 0", map[string]any{"exit_code": 0}},
		{"replaced while it runs", replaced, proc.Identity{}, nil, "pid 12 replaced pid 11", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var emitted []agentproto.Event
			engine := &Engine{cfg: Config{Emit: func(e agentproto.Event) { emitted = append(emitted, e) }}}
			engine.host = &procop.Host{Outputs: procop.NewOutputs(t.TempDir(), testenv.Log(t))}
			a := &actor{engine: engine}
			a.state.Failures, a.memory.Last, a.memory.exited, a.memory.LastExit = 5, before, c.exited, c.exit
			reporter{a}.emitNotice(c.notice)
			if len(emitted) != 1 || emitted[0].Message != c.message {
				t.Fatalf("emitted %+v, want %q", emitted, c.message)
			}
			maps.DeleteFunc(emitted[0].Details, func(name string, _ any) bool { return !slices.Contains([]string{"exit_code", "signal"}, name) })
			if !maps.Equal(emitted[0].Details, c.details) {
				t.Fatalf("details of the exit are %v, want %v", emitted[0].Details, c.details)
			}
		})
	}
}

func TestLimitEventCarriesExitCode(t *testing.T) {
	t.Parallel()
	s := &snapshot{}
	s.known.Main.PID = 11
	end := procop.TerminationEnd{Begun: true, Gone: true, How: "stop command", Exit: &agentproto.LastExit{Known: true, Code: 3, Why: "limit"}}
	e := exceeded(limits.Breach{}, s, proc.Capacity{}, end)
	if e.Details["exit_code"] != 3 {
		t.Errorf("details are %v", e.Details)
	}
	if want := "; ended by stop command; pid 11 exited with code 3"; !strings.HasSuffix(e.Message, want) {
		t.Errorf("message is %q, want %q at its end", e.Message, want)
	}
}

// carriesSigkill checks that details and message of an event agree on the signal SIGKILL.
// Whether the agent knows the signal depends on the kernel version and on the reaping parent.
func (g *rig) carriesSigkill(e agentproto.Event) {
	g.t.Helper()
	signal, known := e.Details["signal"]
	if known && signal != "SIGKILL" || known != strings.Contains(e.Message, "was killed by SIGKILL") {
		g.t.Fatalf("event is %+v", e)
	}
}

func TestRestartedAndGaveUpCarryTheSignal(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; [ ! -e broken ] || exit 1; exec ./demo -pid demo.pid"
		s.StartRetries, s.StartIntervalMS = 1, 10
	})
	pid := g.want("start", spec, 0, "").Status.PID
	sigkill(t, pid)
	s := g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
	e := g.emitted(&emitted, agentproto.EventRestarted)
	g.carriesSigkill(e)
	if _, known := e.Details["signal"]; s.LastExit == nil || known != s.LastExit.Known {
		t.Fatalf("event is %+v, last exit %+v", e, s.LastExit)
	}
	g.write("broken", "")
	sigkill(t, s.PID)
	g.carriesSigkill(g.emitted(&emitted, agentproto.EventGaveUp))
}
