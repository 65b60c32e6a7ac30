package procspec

import (
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

func goodSpec() agentproto.Spec {
	return agentproto.Spec{
		Key: "/opt/app/app", ProcName: "app", SetupPath: "/opt/app", PidPath: "/opt/app/app.pid",
		StartCmd: "./start.sh", ReloadCmd: "./reload.sh", Type: Resident,
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
		"alive.stop_grace":       func(s *agentproto.Spec) { s.StopGraceMS = 3_600_001 },
		"(cmd_shell_ext)":        func(s *agentproto.Spec) { s.Shell = "bat" },
	} {
		for action := range actionNames {
			s := goodSpec()
			change(&s)
			if err := Check(action, &s); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s with a bad %s: error is %v, want one that names it", action, field, err)
			}
		}
	}
	for action := range actionNames {
		s := goodSpec()
		if err := Check(action, &s); err != nil {
			t.Errorf("%s: %v", action, err)
		}
	}
}

func TestOnlyActionsThatBringUpLookAtHowTheProcessLives(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*agentproto.Spec){
		"(cycle_time)":     func(s *agentproto.Spec) { s.Type, s.CycleTimeMS = Periodic, -60_000 },
		"(crontab_rule)":   func(s *agentproto.Spec) { s.Type, s.Crontab = Periodic, "* * *" },
		"(instance_num)":   func(s *agentproto.Spec) { s.Instances, s.PidPath = 2, "" },
		"(start_retries)":  func(s *agentproto.Spec) { s.StartRetries = -1 },
		"(start_interval)": func(s *agentproto.Spec) { s.StartIntervalMS = 0 },
	} {
		for action := range actionNames {
			s := goodSpec()
			change(&s)
			err := Check(action, &s)
			if !StartsProcess(action) {
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
		err := Check(action, &s)
		if (err == nil) != (field == "") || err != nil && !strings.Contains(err.Error(), field) {
			t.Errorf("%s without commands: error is %v, want one that names %q", action, err, field)
		}
	}
}

func TestWindowsNeedsAStopCommandAndShellsOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		action, system       string
		shell, stop, restart string
		want                 string // part of the error; "" = accepted
	}{
		{action: agentproto.ActionStop, system: "linux"},
		{action: agentproto.ActionStop, system: "windows", shell: "bat", want: "control.stop (stop_cmd) is empty, and Windows has no SIGTERM"},
		{action: agentproto.ActionStop, system: "windows", shell: "bat", stop: "stop.bat"},
		{action: agentproto.ActionKill, system: "windows", shell: "bat"},
		{action: agentproto.ActionStart, system: "windows", shell: "ps1"},
		{action: agentproto.ActionRestart, system: "windows", shell: "ps1", want: "set a stop command for restart"},
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
