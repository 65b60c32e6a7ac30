// Package procspec interprets process specs: it checks whether an action accepts a spec, and
// defines the meaning of the fields.
package procspec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// The process types with special semantics. Resident and manual processes should run
// permanently, and resident ones are kept alive. A periodic process is started by its
// schedule. A process of any other type is started and may end.
const (
	Resident = "resident"
	Manual   = "manual"
	Periodic = "periodic"
)

// LivesOn reports whether a process should run permanently.
func LivesOn(s *agentproto.Spec) bool { return s.Type == Resident || s.Type == Manual }

// HasSchedule reports whether a process is run by a schedule. A periodic process
// without a cycle or a crontab is run once.
func HasSchedule(s *agentproto.Spec) bool {
	return s.Type == Periodic && (s.CycleTimeMS > 0 || s.Crontab != "")
}

// HasInstances reports whether one start command starts several permanent processes.
func HasInstances(s *agentproto.Spec) bool { return LivesOn(s) && s.Instances > 1 }

// Instances returns the number of processes that one start command starts.
func Instances(s *agentproto.Spec) int {
	if HasInstances(s) {
		return s.Instances
	}
	return 1
}

// actionNames maps actions to the names of the operations in the published APIs.
var actionNames = map[string]string{
	agentproto.ActionStart:     "start",
	agentproto.ActionStop:      "stop",
	agentproto.ActionStatus:    "status",
	agentproto.ActionSupervise: "register",
	agentproto.ActionRelease:   "unregister",
	agentproto.ActionRestart:   "restart",
	agentproto.ActionReload:    "reload",
	agentproto.ActionKill:      "kill",
}

// ActionName returns the operation's name in the published APIs, which is also the prefix of
// its messages; "" if the action is unknown.
func ActionName(action string) string { return actionNames[action] }

// Upper bounds of spec fields.
const (
	maxOpTimeout = 24 * time.Hour
	maxCheck     = time.Hour
	maxKey       = 512  // bytes
	maxPattern   = 4096 // bytes
)

// Check returns an error that names the fields of a spec that are invalid for an action. A
// shell that this host cannot run is invalid for every action. The fields about the life of
// the process are checked only for actions that start or supervise it.
func Check(action string, s *agentproto.Spec) error {
	if err := checkSystem(runtime.GOOS, action, s); err != nil {
		return err
	}
	err := errors.Join(checkIdentity(s), checkTimes(s))
	if err == nil && StartsProcess(action) {
		err = checkLife(s)
	}
	if err == nil {
		err = checkCommands(action, s)
	}
	return err
}

// checkSystem rejects specs that the operating system, named as in [runtime.GOOS], does not
// support.
func checkSystem(system, action string, s *agentproto.Spec) error {
	if err := proc.Shell(s.Shell).RunsOn(system); err != nil {
		return fmt.Errorf("control.shell (cmd_shell_ext): %w", err)
	}
	stops := action == agentproto.ActionStop || action == agentproto.ActionRestart && s.RestartCmd == ""
	if system == "windows" && stops && s.StopCmd == "" {
		return fmt.Errorf("control.stop (stop_cmd) is empty, and Windows has no SIGTERM: set a stop command for %s, or use kill", actionNames[action])
	}
	return nil
}

// StartsProcess reports whether an action starts the process or registers it for supervision.
func StartsProcess(action string) bool {
	return action == agentproto.ActionStart || action == agentproto.ActionSupervise || action == agentproto.ActionRestart
}

func checkIdentity(s *agentproto.Spec) error {
	switch {
	case s.Key == "" || len(s.Key) > maxKey:
		return fmt.Errorf("key has %d bytes, not 1 to %d", len(s.Key), maxKey)
	case s.ProcName == "":
		return errors.New("proc_name is empty")
	case s.SetupPath != "" && !filepath.IsAbs(s.SetupPath):
		return fmt.Errorf("setup_path %q is not absolute", s.SetupPath)
	case s.PidPath != "" && !filepath.IsAbs(s.PidPath):
		return fmt.Errorf("pid_path %q is not absolute", s.PidPath)
	}
	_, err := CompileArgs(s)
	return err
}

// CompileArgs compiles the pattern of command lines of a spec; nil if the spec has none.
func CompileArgs(s *agentproto.Spec) (*regexp.Regexp, error) {
	if s.ArgsPattern == "" {
		return nil, nil
	}
	if len(s.ArgsPattern) > maxPattern {
		return nil, fmt.Errorf("args_pattern has %d bytes, more than %d", len(s.ArgsPattern), maxPattern)
	}
	args, err := regexp.Compile(s.ArgsPattern)
	if err != nil {
		return nil, fmt.Errorf("args_pattern: %w", err)
	}
	return args, nil
}

func checkTimes(s *agentproto.Spec) error {
	if s.OpTimeoutMS < 1 || s.OpTimeoutMS > maxOpTimeout.Milliseconds() {
		return fmt.Errorf("alive.op_timeout (op_timeout) %s is not above 0 and up to %s", OpTimeout(s), maxOpTimeout)
	}
	for _, check := range []struct {
		field string
		ms    int64
	}{
		{"alive.start_check_begin (start_check_begin_time, start_check_secs)", s.StartCheckBeginMS},
		{"alive.start_check_end (start_check_end_time)", s.StartCheckEndMS},
		{"alive.stop_check (stop_check_secs)", s.StopCheckMS},
		{"alive.stop_grace", s.StopGraceMS},
	} {
		if check.ms < 0 || check.ms > maxCheck.Milliseconds() {
			return fmt.Errorf("%s %s is not 0 to %s", check.field, Milliseconds(check.ms), maxCheck)
		}
	}
	return nil
}

// checkLife rejects settings that the agent cannot apply to a process that it starts or
// keeps alive.
func checkLife(s *agentproto.Spec) error {
	switch {
	case s.Type == Periodic && s.CycleTimeMS < 0:
		return fmt.Errorf("alive.cycle_time (cycle_time) %s is negative", Milliseconds(s.CycleTimeMS))
	case HasInstances(s) && s.PidPath == "":
		return fmt.Errorf("alive.instances (instance_num) %d: needs pid_path, a file with the pid of each in a line of its own", s.Instances)
	case s.StartRetries < 0:
		return fmt.Errorf("alive.start_retries (start_retries) %d is negative", s.StartRetries)
	case s.Type == Resident && s.StartIntervalMS < 1:
		return fmt.Errorf("alive.start_interval (start_interval) %s is not positive", Milliseconds(s.StartIntervalMS))
	case s.Type == Periodic && s.Crontab != "":
		if _, err := supervise.Crontab(s.Crontab); err != nil {
			return fmt.Errorf("alive.crontab (crontab_rule) %q: %w", s.Crontab, err)
		}
	}
	return nil
}

func checkCommands(action string, s *agentproto.Spec) error {
	switch {
	case (action == agentproto.ActionStart || action == agentproto.ActionSupervise) && s.StartCmd == "":
		return fmt.Errorf("control.start (start_cmd) is empty, and %s needs it", actionNames[action])
	case action == agentproto.ActionRestart && s.RestartCmd == "" && s.StartCmd == "":
		return errors.New("control.restart (restart_cmd) and control.start (start_cmd) are empty, and restart needs one of them")
	case action == agentproto.ActionReload && s.ReloadCmd == "":
		return errors.New("control.reload (reload_cmd) is empty, and reload needs it")
	}
	return nil
}

// Unenforced returns a warning for each spec field that is stored but has no effect.
func Unenforced(s *agentproto.Spec) []string {
	if LivesOn(s) || s.Instances <= 1 {
		return nil
	}
	return []string{fmt.Sprintf("alive.instances (instance_num) %d: the command is run once, and one process is observed", s.Instances)}
}

// Milliseconds converts a field in milliseconds to a duration.
func Milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// OpTimeout returns the timeout of each command of the process.
func OpTimeout(s *agentproto.Spec) time.Duration { return Milliseconds(s.OpTimeoutMS) }

// StopGrace returns the time after which a stop kills the processes that still run; 0 = never.
func StopGrace(s *agentproto.Spec) time.Duration { return Milliseconds(s.StopGraceMS) }

// StartWindow returns the earliest and the latest time, after the end of the start command,
// at which the process must run. end is at least begin.
func StartWindow(s *agentproto.Spec) (begin, end time.Duration) {
	return Milliseconds(s.StartCheckBeginMS), Milliseconds(max(s.StartCheckBeginMS, s.StartCheckEndMS))
}

// Budget returns the longest duration of a whole operation.
func Budget(s *agentproto.Spec) time.Duration {
	_, end := StartWindow(s)
	return 2*OpTimeout(s) + end + Milliseconds(s.StopCheckMS)
}

// StartLine returns the command that starts a process. A spec that was registered by a
// restart may have only a restart command.
func StartLine(s *agentproto.Spec) string { return cmp.Or(s.StartCmd, s.RestartCmd) }

// RestartLine returns the command that a restart runs to start the process.
func RestartLine(s *agentproto.Spec) string { return cmp.Or(s.RestartCmd, s.StartCmd) }

// Account returns the user that runs the commands of a spec.
func Account(s *agentproto.Spec) string { return cmp.Or(s.Account, proc.DefaultAccount) }

// SameProgram reports whether two specs describe the same program, so that a process found
// by one spec is also the process of the other.
func SameProgram(a, b *agentproto.Spec) bool {
	return a.ProcName == b.ProcName && a.ArgsPattern == b.ArgsPattern && Account(a) == Account(b) &&
		filepath.Clean(a.SetupPath) == filepath.Clean(b.SetupPath) &&
		filepath.Clean(a.PidPath) == filepath.Clean(b.PidPath)
}

// Mark returns the value of the environment mark that commands of a spec carry. It
// identifies the program (see [SameProgram]): after a key's setup path has changed, a
// program that still runs in the old path carries another mark. The mark is a hash because
// keys may contain bytes that an environment cannot. The pattern of arguments is not part of
// it: a process that already runs must still be found after the pattern was added or
// corrected.
//
// Without a setup path and a pid file, instance is part of the mark: another agent on the
// same machine may have a process with the same key. instance is "" if this agent is the
// only one.
func Mark(s *agentproto.Spec, instance string) string {
	identity := []string{s.Key, s.ProcName, Account(s), filepath.Clean(s.SetupPath), filepath.Clean(s.PidPath)}
	if s.SetupPath == "" && s.PidPath == "" {
		identity = append(identity, instance)
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\x00")))
	return hex.EncodeToString(sum[:8])
}
