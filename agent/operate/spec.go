package operate

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

// The process types that are told from others. Resident processes are kept
// alive, manual ones are meant to live on as well. Processes of every other type
// are started and left to end; periodic ones by schedule, if they have one.
const (
	resident = "resident"
	manual   = "manual"
	periodic = "periodic"
)

// lives reports whether a process is meant not to end by itself.
func lives(s *agentproto.Spec) bool { return s.Type == resident || s.Type == manual }

// actionNames are the words that open messages, by action; an action without
// one is unknown. They are the operations' names in the published APIs.
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

// Bounds of a spec's times.
const (
	maxOpTimeout = 24 * time.Hour
	maxCheck     = time.Hour
	maxKey       = 512  // bytes
	maxPattern   = 4096 // bytes
)

// checkSpec finds what in a spec keeps the action from being carried out. Its
// messages name the field. A spec in a language that this host does not run is
// of no use for any action. Only actions that begin or extend the life of a
// process look at how it is meant to live.
func checkSpec(action string, s *agentproto.Spec) error {
	if err := checkSystem(runtime.GOOS, action, s); err != nil {
		return err
	}
	err := errors.Join(checkIdentity(s), checkTimes(s))
	if err == nil && startsProcess(action) {
		err = checkLife(s)
	}
	if err == nil {
		err = checkCommands(action, s)
	}
	return err
}

// checkSystem refuses what cannot be done on a system, named as in
// [runtime.GOOS].
func checkSystem(system, action string, s *agentproto.Spec) error {
	if err := proc.Shell(s.Shell).RunsOn(system); err != nil {
		return fmt.Errorf("control.shell (cmd_shell_ext): %w", err)
	}
	stops := action == agentproto.ActionStop || action == agentproto.ActionRestart && s.RestartCmd == ""
	if system == "windows" && stops && s.StopCmd == "" {
		return fmt.Errorf("control.stop (stop_cmd) is empty, and Windows has no SIGTERM to send in its place: give a stop command for %s, or use kill", actionNames[action])
	}
	return nil
}

func startsProcess(action string) bool {
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
	_, err := compileArgs(s)
	return err
}

// compileArgs compiles the pattern of a spec for command lines; nil if it has
// none.
func compileArgs(s *agentproto.Spec) (*regexp.Regexp, error) {
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
		return fmt.Errorf("alive.op_timeout (op_timeout) %s is not above 0 and up to %s", opTimeout(s), maxOpTimeout)
	}
	for _, check := range []struct {
		field string
		ms    int64
	}{
		{"alive.start_check_begin (start_check_begin_time, start_check_secs)", s.StartCheckBeginMS},
		{"alive.start_check_end (start_check_end_time)", s.StartCheckEndMS},
		{"alive.stop_check (stop_check_secs)", s.StopCheckMS},
	} {
		if check.ms < 0 || check.ms > maxCheck.Milliseconds() {
			return fmt.Errorf("%s %s is not 0 to %s", check.field, ms(check.ms), maxCheck)
		}
	}
	return nil
}

// checkLife refuses what this agent cannot do for a process that it starts or
// keeps alive.
func checkLife(s *agentproto.Spec) error {
	switch {
	case s.Type == periodic && s.CycleTimeMS < 0:
		return fmt.Errorf("alive.cycle_time (cycle_time) %s is negative", ms(s.CycleTimeMS))
	case several(s) && s.PidPath == "":
		return fmt.Errorf("alive.instances (instance_num) %d: needs pid_path, a file with the pid of each in a line of its own", s.Instances)
	case s.StartRetries < 0:
		return fmt.Errorf("alive.start_retries (start_retries) %d is negative", s.StartRetries)
	case s.Type == resident && s.StartIntervalMS < 1:
		return fmt.Errorf("alive.start_interval (start_interval) %s is not positive", ms(s.StartIntervalMS))
	case s.Type == periodic && s.Crontab != "":
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

// unenforced says which fields of a spec are kept and have no effect.
func unenforced(s *agentproto.Spec) []string {
	var warnings []string
	if !lives(s) && s.Instances > 1 {
		warnings = append(warnings, fmt.Sprintf("alive.instances (instance_num) %d: the command is run once, and one process is looked at", s.Instances))
	}
	return warnings
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func opTimeout(s *agentproto.Spec) time.Duration { return ms(s.OpTimeoutMS) }

// startWindow is when, after the start command, the process must be there. An
// end before the begin counts as the begin.
func startWindow(s *agentproto.Spec) (begin, end time.Duration) {
	return ms(s.StartCheckBeginMS), ms(max(s.StartCheckBeginMS, s.StartCheckEndMS))
}

// budget is how long an operation may take all in all.
func budget(s *agentproto.Spec) time.Duration {
	_, end := startWindow(s)
	return 2*opTimeout(s) + end + ms(s.StopCheckMS)
}

// startLine is the command that brings a process up. A process that was
// registered by a restart may have only the restart command.
func startLine(s *agentproto.Spec) string {
	if s.StartCmd == "" {
		return s.RestartCmd
	}
	return s.StartCmd
}

func policyOf(s *agentproto.Spec, t Timing) supervise.Policy {
	interval := ms(s.StartIntervalMS)
	return supervise.Policy{
		Resident: s.Type == resident, Periodic: isPeriodic(s), Retries: s.StartRetries, Interval: interval,
		MaxDelay: t.MaxDelay, StableAfter: max(10*interval, t.StableAfter), LongRun: max(10*interval, t.LongRun), RecoverDelay: t.RecoverDelay,
		FlapStarts: 10, FlapWindow: t.FlapWindow, SetupTries: 2, LimitKills: 3, LimitWindow: t.LimitWindow,
		ProbeInterval: t.ProbeInterval, ProbeTries: 5, ProbeFor: t.ProbeFor, RivalWait: t.RivalWait,
	}
}

// accountOf is the user that the spec's commands run as.
func accountOf(s *agentproto.Spec) string { return cmp.Or(s.Account, proc.DefaultAccount) }

// sameProgram reports whether two specs describe the same program, so that
// the process found by one is the other's.
func sameProgram(a, b *agentproto.Spec) bool {
	return a.ProcName == b.ProcName && a.ArgsPattern == b.ArgsPattern && accountOf(a) == accountOf(b) &&
		filepath.Clean(a.SetupPath) == filepath.Clean(b.SetupPath) &&
		filepath.Clean(a.PidPath) == filepath.Clean(b.PidPath)
}

// markOf is the value of the environment mark of the program that a key's spec
// describes (see sameProgram): a key whose spec turns to another setup path has
// nothing to do with the program that still runs in the one before. It is a
// hash because keys may hold bytes that an environment cannot. The pattern of
// arguments is no part of it: who adds one to a spec, or corrects it, means what
// runs already, and so must find it.
//
// Where nothing else tells which process is meant, the mark is this agent's
// own: another agent of the same machine may have a process of the same key.
func (e *Engine) markOf(s *agentproto.Spec) string {
	identity := []string{s.Key, s.ProcName, accountOf(s), filepath.Clean(s.SetupPath), filepath.Clean(s.PidPath)}
	if s.SetupPath == "" && s.PidPath == "" {
		identity = append(identity, e.cfg.Instance)
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\x00")))
	return hex.EncodeToString(sum[:8])
}
