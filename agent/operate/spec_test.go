package operate

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

func goodSpec() agentproto.Spec {
	return agentproto.Spec{
		Key: "/opt/app/app", ProcName: "app", SetupPath: "/opt/app", PidPath: "/opt/app/app.pid",
		StartCmd: "./start.sh", ReloadCmd: "./reload.sh", Type: resident,
		OpTimeoutMS: 60_000, StartCheckBeginMS: 5_000, StartCheckEndMS: 5_000, StopCheckMS: 5_000,
		StartRetries: 4, StartIntervalMS: 10_000, Instances: 1,
	}
}

func TestCheckSpec(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*agentproto.Spec){
		"key":                    func(s *agentproto.Spec) { s.Key = "" },
		"proc_name":              func(s *agentproto.Spec) { s.ProcName = "" },
		"setup_path":             func(s *agentproto.Spec) { s.SetupPath = "opt/app" },
		"pid_path":               func(s *agentproto.Spec) { s.PidPath = "app.pid" },
		"args_pattern: ":         func(s *agentproto.Spec) { s.ArgsPattern = "--port (80" },
		"args_pattern has":       func(s *agentproto.Spec) { s.ArgsPattern = strings.Repeat("x", maxPattern+1) },
		"(op_timeout)":           func(s *agentproto.Spec) { s.OpTimeoutMS = 0 },
		"start_check_begin_time": func(s *agentproto.Spec) { s.StartCheckBeginMS = -1 },
		"start_check_end_time":   func(s *agentproto.Spec) { s.StartCheckEndMS = 3_600_001 },
		"stop_check_secs":        func(s *agentproto.Spec) { s.StopCheckMS = -5 },
		"(cmd_shell_ext)":        func(s *agentproto.Spec) { s.Shell = "bat" },
	} {
		for action := range actionNames {
			s := goodSpec()
			change(&s)
			if err := checkSpec(action, &s); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s with a bad %s: error is %v, want one that names it", action, field, err)
			}
		}
	}
	for action := range actionNames {
		s := goodSpec()
		if err := checkSpec(action, &s); err != nil {
			t.Errorf("%s: %v", action, err)
		}
	}
}

func TestOnlyActionsThatBringUpLookAtHowTheProcessLives(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*agentproto.Spec){
		"(cycle_time)":     func(s *agentproto.Spec) { s.Type, s.CycleTimeMS = periodic, -60_000 },
		"(crontab_rule)":   func(s *agentproto.Spec) { s.Type, s.Crontab = periodic, "* * *" },
		"(instance_num)":   func(s *agentproto.Spec) { s.Instances, s.PidPath = 2, "" },
		"(start_retries)":  func(s *agentproto.Spec) { s.StartRetries = -1 },
		"(start_interval)": func(s *agentproto.Spec) { s.StartIntervalMS = 0 },
	} {
		for action := range actionNames {
			s := goodSpec()
			change(&s)
			err := checkSpec(action, &s)
			if !startsProcess(action) {
				if err != nil {
					t.Errorf("%s: %v", action, err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s with %s: error is %v, want one that names it", action, field, err)
			}
		}
	}
}

func TestMissingCommands(t *testing.T) {
	t.Parallel()
	for action, field := range map[string]string{
		agentproto.ActionStart: "start_cmd", agentproto.ActionSupervise: "start_cmd",
		agentproto.ActionRestart: "restart_cmd", agentproto.ActionReload: "reload_cmd",
		agentproto.ActionStop: "", agentproto.ActionKill: "", agentproto.ActionRelease: "", agentproto.ActionStatus: "",
	} {
		s := goodSpec()
		s.StartCmd, s.ReloadCmd = "", ""
		err := checkSpec(action, &s)
		if (err == nil) != (field == "") || err != nil && !strings.Contains(err.Error(), field) {
			t.Errorf("%s without commands: error is %v, want one that names %q", action, err, field)
		}
	}
}

func TestPolicyOfSpec(t *testing.T) {
	t.Parallel()
	s := goodSpec()
	timing := Timing{}.withDefaults()
	if p := policyOf(&s, timing); !p.Resident || p.Interval != 10*time.Second || p.StableAfter != 10*time.Minute || p.Retries != 4 {
		t.Errorf("policy is %+v", p)
	}
	s.StartIntervalMS, s.Type = 600_000, "periodic"
	if p := policyOf(&s, timing); p.Resident || p.StableAfter != 100*time.Minute {
		t.Errorf("policy is %+v", p)
	}
}

func TestMessagesFitAndAreValid(t *testing.T) {
	t.Parallel()
	v := commandFailed("command failed", "exit=1", "output tail: "+strings.Repeat("ü", 3_000)+"\xff")
	text := v.text("start")
	if len(text) > agentproto.MaxMessage || !strings.HasPrefix(text, "start: command failed; exit=1; output tail: ü") {
		t.Errorf("message of %d bytes: %.60q", len(text), text)
	}
	if strings.ToValidUTF8(text, "") != text {
		t.Error("message is not valid UTF-8")
	}
}

func TestWindowsNeedsAStopCommandAndShellsOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		action, system       string
		shell, stop, restart string
		want                 string // part of the error; "" = it is accepted
	}{
		{action: agentproto.ActionStop, system: "linux"},
		{action: agentproto.ActionStop, system: "windows", shell: "bat", want: "control.stop (stop_cmd) is empty, and Windows has no SIGTERM"},
		{action: agentproto.ActionStop, system: "windows", shell: "bat", stop: "stop.bat"},
		{action: agentproto.ActionKill, system: "windows", shell: "bat"},
		{action: agentproto.ActionStart, system: "windows", shell: "ps1"},
		{action: agentproto.ActionRestart, system: "windows", shell: "ps1", want: "give a stop command for restart"},
		{action: agentproto.ActionRestart, system: "windows", shell: "ps1", stop: "stop.ps1"},
		{action: agentproto.ActionRestart, system: "windows", shell: "ps1", restart: "restart.ps1"},
		{action: agentproto.ActionStart, system: "windows", want: "cmd_shell_ext"},
		{action: agentproto.ActionStatus, system: "linux", shell: "ps1", want: "cmd_shell_ext"},
	} {
		s := goodSpec()
		s.Shell, s.StopCmd, s.RestartCmd = test.shell, test.stop, test.restart
		err := checkSystem(test.system, test.action, &s)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s on %s: %v, want %q", test.action, test.system, err, test.want)
		}
	}
}
