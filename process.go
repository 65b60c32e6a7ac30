package procfleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"time"
)

// ProcessSpec says what a process is and how it is controlled. Start from
// [DefaultSpec]: a zero field means zero, not "default".
type ProcessSpec struct {
	// Namespace and Name are the managed identity; both or neither.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// ValueKey identifies the process where there is no namespace and name,
	// and SetupPath with ProcName would not be unique.
	ValueKey string `json:"value_key,omitempty"`
	// Labels are the caller's; values are JSON scalars, returned as given.
	Labels map[string]json.RawMessage `json:"labels,omitempty"`

	// ProcName is the name of the program as the host sees it ("java").
	ProcName string `json:"proc_name"`
	// ArgsPattern is a regular expression (RE2, at most [MaxPath] bytes) that
	// something in the command line of the process, its arguments joined by
	// single spaces, must match, to distinguish it from others of the same program;
	// empty matches all.
	ArgsPattern string `json:"args_pattern,omitempty"`
	SetupPath   string `json:"setup_path,omitempty"` // working directory of every command; absolute
	PidPath     string `json:"pid_path,omitempty"`   // pid file; absolute
	ConfigPath  string `json:"config_path,omitempty"`
	LogPath     string `json:"log_path,omitempty"`
	// Account runs the commands; empty is root.
	Account string `json:"account,omitempty"`

	Control Control     `json:"control"`
	Alive   AlivePolicy `json:"alive"`
	Limits  Limits      `json:"limits,omitzero"`

	// FuncID, InstanceID and Contact are the caller's bookkeeping, echoed.
	FuncID     string `json:"func_id,omitempty"`
	InstanceID string `json:"instance_id,omitempty"`
	Contact    string `json:"contact,omitempty"`

	// Unregistered says that there is no spec: an operation took it from what
	// is registered, and nothing is. Such a spec has only Namespace and Name,
	// and reaches no host. It is never the caller's to say.
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
	// Shell runs the commands: sh, bat or ps1.
	Shell Shell `json:"shell,omitempty"`
	// Environment is added to the account's login environment.
	Environment map[string]string `json:"env,omitempty"`
	// NoProfile runs commands without the account's login profile.
	NoProfile bool `json:"no_profile,omitempty"`
	// RestartInPlace accepts a restart that keeps the pid (nginx re-exec).
	RestartInPlace bool `json:"restart_in_place,omitempty"`
	// HealthRestart lets three failures of Health in a row end and start the
	// process again; without, they are only reported.
	HealthRestart bool `json:"health_restart,omitempty"`
}

// Shell is the kind of command line that [Control] holds. Empty means sh.
type Shell string

// The shells.
const (
	ShellSh  Shell = "sh"
	ShellBat Shell = "bat"
	ShellPs1 Shell = "ps1"
)

// ProcessType says how long a process is meant to live.
type ProcessType string

// The process types.
const (
	// Resident processes are kept alive once started or supervised.
	Resident ProcessType = "resident"
	// Once is started and ends by itself; it is never supervised.
	Once ProcessType = "once"
	// Manual processes run until they are ended by hand: a start is verified as of
	// a resident one, and they are never supervised. Older agents take it
	// for Once.
	Manual ProcessType = "manual"
	// Periodic is run by schedule. Without CycleTime and Crontab it is Once.
	Periodic ProcessType = "periodic"
)

// AlivePolicy says how an agent verifies a process and keeps it alive.
type AlivePolicy struct {
	Type ProcessType `json:"type"` // default resident
	// OpTimeout bounds each control command; 1 s to 24 h, default 60 s.
	OpTimeout Duration `json:"op_timeout"`
	// StartCheckBegin and StartCheckEnd are the window, from the end of the
	// start command, in which the process must prove itself; 0 to 1 h,
	// default 5 s each. An End below Begin counts as Begin.
	StartCheckBegin Duration `json:"start_check_begin"`
	StartCheckEnd   Duration `json:"start_check_end"`
	// StopCheck is how long a stopped process may take to go; 0 to 1 h, default 5 s.
	StopCheck Duration `json:"stop_check"`
	// StartRetries is how often a dead supervised process is started again
	// before the agent gives up; 0 to 1000, default 4.
	StartRetries int `json:"start_retries"`
	// StartInterval is the first delay of the back-off; 10 ms to 24 h, default 10 s.
	StartInterval Duration `json:"start_interval"`
	CycleTime     Duration `json:"cycle_time,omitempty"` // Periodic: 1 s to 365 days
	Crontab       string   `json:"crontab,omitempty"`    // Periodic: five-field rule
	// Instances is how many processes one start makes; default 1, 0 counts as 1.
	Instances int `json:"instances,omitempty"`
}

// Limits are shares of the whole machine in percent, 100 being all of it;
// 0 is no limit.
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
			StartRetries:    4,
			StartInterval:   Seconds(10),
			Instances:       1,
		},
	}
}

// Key is the identity of the process on its host: "namespace:name", else
// ValueKey, else SetupPath joined with ProcName by the separator that
// SetupPath itself uses.
func (s *ProcessSpec) Key() string { return string(s.AppendKey(nil)) }

// AppendKey appends what Key returns.
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

// Budget is the longest that action may take on a responsive host before its
// outcome must be known.
func (s *ProcessSpec) Budget(action Action) time.Duration {
	const look = 15 * time.Second // probing, killing a hung command, late pid files
	op, window, stop := s.Alive.OpTimeout.Std(), s.startWindow(), s.Alive.StopCheck.Std()
	switch action {
	case ActionStart:
		return op + window + look
	case ActionStop, ActionKill:
		return op + stop + look
	case ActionRestart:
		return 2*op + stop + window + look
	case ActionReload:
		return op + look
	default:
		return look
	}
}

func (s *ProcessSpec) startWindow() time.Duration {
	return max(s.Alive.StartCheckBegin, s.Alive.StartCheckEnd).Std()
}

// boundArgsPattern checks [ProcessSpec.ArgsPattern]: agents compile it and hold
// it against every process of the program.
func (s *ProcessSpec) boundArgsPattern() error {
	pattern := textField{"args_pattern", s.ArgsPattern}
	if err := boundText(pattern, MaxPath); err != nil {
		return err
	}
	parsed, err := syntax.Parse(pattern.text, syntax.Perl)
	if err != nil {
		return &FieldError{pattern.name, "is not a regular expression (RE2): " + problemOf(err)}
	}
	if n := spelledOut(parsed); n > MaxPath {
		return &FieldError{pattern.name, fmt.Sprintf("repeats too much: with every {n} written out it has %d parts, at most %d are allowed", n, MaxPath)}
	}
	return nil
}

func problemOf(err error) string {
	if bad, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Sprintf("%s: %q", bad.Code, clip(bad.Expr))
	}
	return err.Error()
}

// spelledOut is about how many instructions an expression compiles to: x{1000}
// is short, and takes as long to match as a thousand x.
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
