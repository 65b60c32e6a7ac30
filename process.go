package procfleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"time"
)

// ProcessSpec describes a process and its control commands. Start from
// [DefaultSpec]: a zero field means zero, not the default.
type ProcessSpec struct {
	// Namespace and Name identify a managed process; set both or neither.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// ValueKey identifies the process if Namespace and Name are empty and
	// SetupPath with ProcName is not unique.
	ValueKey string `json:"value_key,omitempty"`
	// Labels are the caller's annotations; the JSON scalars are returned unchanged.
	Labels map[string]json.RawMessage `json:"labels,omitempty"`

	// ProcName is the program name in the host's process table, such as "java".
	ProcName string `json:"proc_name"`
	// ArgsPattern is a regular expression (RE2, at most [MaxPath] bytes) that
	// distinguishes the process from others of the same program. It must match
	// a part of the command line, the arguments joined by single spaces; an
	// empty pattern matches every process.
	ArgsPattern string `json:"args_pattern,omitempty"`
	SetupPath   string `json:"setup_path,omitempty"` // working directory of every command; absolute
	PidPath     string `json:"pid_path,omitempty"`   // pid file; absolute
	ConfigPath  string `json:"config_path,omitempty"`
	LogPath     string `json:"log_path,omitempty"`
	// Account is the operating system user that runs the commands; empty: root.
	Account string `json:"account,omitempty"`

	Control Control     `json:"control"`
	Alive   AlivePolicy `json:"alive"`
	Limits  Limits      `json:"limits,omitzero"`

	// FuncID, InstanceID and Contact are the caller's own data, returned unchanged.
	FuncID     string `json:"func_id,omitempty"`
	InstanceID string `json:"instance_id,omitempty"`
	Contact    string `json:"contact,omitempty"`

	// Unregistered marks a spec that names a process by its registration, of
	// which the store has none. Such a spec has only Namespace and Name and is
	// not sent to the host. Callers must not set it.
	Unregistered bool `json:"unregistered,omitempty"`
}

// Control holds the control commands, run by a shell in SetupPath.
type Control struct {
	Start   string `json:"start,omitempty"`
	Stop    string `json:"stop,omitempty"`    // empty: SIGTERM to the verified process
	Restart string `json:"restart,omitempty"` // empty: stop, then start
	Reload  string `json:"reload,omitempty"`
	Kill    string `json:"kill,omitempty"` // empty: SIGKILL to the verified process tree
	Version string `json:"version,omitempty"`
	Health  string `json:"health,omitempty"`
	// Shell interprets the commands: sh, bat or ps1.
	Shell Shell `json:"shell,omitempty"`
	// Environment is added to the account's login environment.
	Environment map[string]string `json:"env,omitempty"`
	// NoProfile runs commands without the account's login profile.
	NoProfile bool `json:"no_profile,omitempty"`
	// RestartInPlace accepts a restart that preserves the pid (nginx re-exec).
	RestartInPlace bool `json:"restart_in_place,omitempty"`
	// HealthRestart restarts the process after three consecutive failures of
	// Health; if false, failures are only reported.
	HealthRestart bool `json:"health_restart,omitempty"`
}

// Shell is the shell that interprets the commands of a [Control]; empty: sh.
type Shell string

// Values of [Shell].
const (
	ShellSh  Shell = "sh"
	ShellBat Shell = "bat"
	ShellPs1 Shell = "ps1"
)

// ProcessType is the intended lifetime of a process.
type ProcessType string

// Values of [ProcessType].
const (
	// Resident processes are supervised once started.
	Resident ProcessType = "resident"
	// Once is for processes that exit by themselves; they are never supervised.
	Once ProcessType = "once"
	// Manual is for processes that run until an operator stops them. A start is
	// verified as for Resident, without supervision afterwards. Agents without
	// this type treat it as Once.
	Manual ProcessType = "manual"
	// Periodic processes run on a schedule; without CycleTime and Crontab as Once.
	Periodic ProcessType = "periodic"
)

// AlivePolicy defines how an agent verifies and supervises a process.
type AlivePolicy struct {
	Type ProcessType `json:"type"` // default resident
	// OpTimeout bounds each control command; 1 s to 24 h, default 60 s.
	OpTimeout Duration `json:"op_timeout"`
	// StartCheckBegin and StartCheckEnd limit the period, measured from the end
	// of the start command, in which the process is verified; 0 to 1 h, default
	// 5 s each. An End before Begin counts as Begin.
	StartCheckBegin Duration `json:"start_check_begin"`
	StartCheckEnd   Duration `json:"start_check_end"`
	// StopCheck is how long a process may take to exit after its stop command if
	// StopGrace is 0; 0 to 1 h, default 5 s.
	StopCheck Duration `json:"stop_check"`
	// StopGrace is the time after the stop command or SIGTERM until a stop kills
	// the processes that still run; 0 to 1 h, default 30 s, 0 never. They are
	// killed earlier if OpTimeout would end before.
	StopGrace Duration `json:"stop_grace"`
	// StartRetries is the number of automatic starts of a dead process before
	// the agent gives up; 0 to 1000, default 4.
	StartRetries int `json:"start_retries"`
	// StartInterval is the first delay of the back-off; 10 ms to 24 h, default 10 s.
	StartInterval Duration `json:"start_interval"`
	CycleTime     Duration `json:"cycle_time,omitempty"` // Periodic: 1 s to 365 days
	Crontab       string   `json:"crontab,omitempty"`    // Periodic: five-field rule
	// Instances is the number of processes per start; default 1, 0 counts as 1.
	Instances int `json:"instances,omitempty"`
}

// Limits are percentages of the whole machine, 100 being all CPUs or all
// memory; 0 is no limit.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"`
	Memory float64 `json:"memory,omitempty"`
}

// DefaultSpec returns a spec with every default filled in.
func DefaultSpec() ProcessSpec {
	return ProcessSpec{
		Control: Control{Shell: ShellSh},
		Alive: AlivePolicy{
			Type:            Resident,
			OpTimeout:       Seconds(60),
			StartCheckBegin: Seconds(5),
			StartCheckEnd:   Seconds(5),
			StopCheck:       Seconds(5),
			StopGrace:       Seconds(30),
			StartRetries:    4,
			StartInterval:   Seconds(10),
			Instances:       1,
		},
	}
}

// Key returns the identity of the process on its host: "namespace:name", or else
// ValueKey, or else SetupPath and ProcName joined by the path separator used in
// SetupPath.
func (s *ProcessSpec) Key() string { return string(s.AppendKey(nil)) }

// AppendKey appends the result of [ProcessSpec.Key] to b.
func (s *ProcessSpec) AppendKey(b []byte) []byte {
	if s.Namespace != "" || s.Name != "" {
		return append(append(append(b, s.Namespace...), ':'), s.Name...)
	}
	if s.ValueKey != "" {
		return append(b, s.ValueKey...)
	}
	b = append(b, s.SetupPath...)
	switch {
	case s.SetupPath == "", strings.HasSuffix(s.SetupPath, "/"), strings.HasSuffix(s.SetupPath, `\`):
	case strings.Contains(s.SetupPath, `\`):
		b = append(b, '\\')
	default:
		b = append(b, '/')
	}
	return append(b, s.ProcName...)
}

// Budget returns the longest time that action may take on a responsive host.
func (s *ProcessSpec) Budget(action Action) time.Duration {
	const probes = 15 * time.Second // probing, killing a hung command, late pid files
	op, stop := s.Alive.OpTimeout.Std(), s.Alive.StopCheck.Std()
	window := max(s.Alive.StartCheckBegin, s.Alive.StartCheckEnd).Std()
	switch action {
	case ActionStart:
		return op + window + probes
	case ActionStop, ActionKill:
		return op + stop + probes
	case ActionRestart:
		return 2*op + stop + window + probes
	case ActionReload:
		return op + probes
	default:
		return probes
	}
}

// boundArgsPattern validates [ProcessSpec.ArgsPattern], which agents compile and
// match against every process of the program.
func (s *ProcessSpec) boundArgsPattern() error {
	const field = "args_pattern"
	if err := boundText(field, s.ArgsPattern, MaxPath); err != nil {
		return err
	}
	parsed, err := syntax.Parse(s.ArgsPattern, syntax.Perl)
	if err != nil {
		return &FieldError{field, "is not a regular expression (RE2): " + problemOf(err)}
	}
	if n := spelledOut(parsed); n > MaxPath {
		return &FieldError{field, fmt.Sprintf("repeats too much: with every {n} written out it has %d parts, at most %d are allowed", n, MaxPath)}
	}
	return nil
}

func problemOf(err error) string {
	if bad, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Sprintf("%s: %q", bad.Code, clip(bad.Expr))
	}
	return err.Error()
}

// spelledOut estimates the number of instructions of a compiled expression. The length
// of the text is no measure: x{1000} takes as long to match as a thousand x.
func spelledOut(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += spelledOut(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpRepeat:
		return n * max(re.Min, re.Max)
	default:
		return n + 1
	}
}
