package procfleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// FieldError is an error in one field of a request. Field is its path in the
// native JSON format, for example "process.alive.op_timeout".
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// In prefixes the path of every [FieldError] in err with parent:
// In("operations[1]", …) turns "action" into "operations[1].action".
func In(parent string, err error) error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var moved []error
		for _, e := range many.Unwrap() {
			moved = append(moved, In(parent, e))
		}
		return errors.Join(moved...)
	}
	if one, ok := errors.AsType[*FieldError](err); ok {
		return &FieldError{Field: parent + "." + one.Field, Problem: one.Problem}
	}
	return fmt.Errorf("%s: %w", parent, err)
}

// Bounds of the fields of a request.
const (
	MaxOpTimeout  = 24 * time.Hour
	MaxCheck      = time.Hour
	MaxCycleTime  = 365 * 24 * time.Hour
	MaxTimeout    = 7 * 24 * time.Hour
	MaxRetries    = 1000
	MaxInstances  = 1000
	MaxKey        = 512      // bytes of a process key
	MaxCommand    = 32 << 10 // bytes of one control command
	MaxPath       = 4096
	MaxLabelBytes = 16 << 10 // bytes of all labels together
)

// ValidateBounds validates ranges, known words, lengths and text encoding. It
// does not check that the spec is complete enough for an action, unlike
// [ProcessSpec.Validate].
func (s *ProcessSpec) ValidateBounds() error {
	return errors.Join(
		s.boundTimes(),
		s.boundCounts(),
		s.boundText(),
		s.boundArgsPattern(),
		oneOf("alive.type", string(s.Alive.Type), string(Resident), string(Once), string(Manual), string(Periodic)),
		oneOf("control.shell", string(s.Control.Shell), "", string(ShellSh), string(ShellBat), string(ShellPs1)),
		s.boundLabels(),
		s.boundOwn(),
	)
}

func (s *ProcessSpec) boundTimes() error {
	a := &s.Alive
	errs := []error{
		within("alive.op_timeout", a.OpTimeout, time.Second, MaxOpTimeout),
		within("alive.start_check_begin", a.StartCheckBegin, 0, MaxCheck),
		within("alive.start_check_end", a.StartCheckEnd, 0, MaxCheck),
		within("alive.stop_check", a.StopCheck, 0, MaxCheck),
		within("alive.start_interval", a.StartInterval, 10*time.Millisecond, MaxOpTimeout),
	}
	if a.CycleTime != 0 {
		errs = append(errs, within("alive.cycle_time", a.CycleTime, time.Second, MaxCycleTime))
	}
	return errors.Join(errs...)
}

func (s *ProcessSpec) boundCounts() error {
	return errors.Join(
		between("alive.start_retries", s.Alive.StartRetries, MaxRetries),
		between("alive.instances", s.Alive.Instances, MaxInstances),
		percent("limits.cpu", s.Limits.CPU),
		percent("limits.memory", s.Limits.Memory),
	)
}

func (s *ProcessSpec) boundText() error {
	var errs []error
	for _, f := range s.words() {
		errs = append(errs, boundText(f, MaxKey))
	}
	for _, f := range s.paths() {
		errs = append(errs, boundText(f, MaxPath))
	}
	for _, f := range s.commands() {
		errs = append(errs, boundText(f, MaxCommand))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Control.Environment)) {
		errs = append(errs, boundText(textField{"control.env", name + "=" + s.Control.Environment[name]}, MaxCommand))
	}
	return errors.Join(errs...)
}

// boundOwn rejects fields that only the server sets.
func (s *ProcessSpec) boundOwn() error {
	if !s.Unregistered {
		return nil
	}
	return &FieldError{"unregistered", "is not for callers; leave it out"}
}

// boundText validates a text of at most limit bytes.
func boundText(f textField, limit int) error {
	switch {
	case len(f.text) > limit:
		return &FieldError{f.name, fmt.Sprintf("is %d bytes long, at most %d are allowed", len(f.text), limit)}
	case !utf8.ValidString(f.text):
		return &FieldError{f.name, "is not valid UTF-8"}
	case strings.ContainsRune(f.text, 0):
		return &FieldError{f.name, "contains a NUL character"}
	}
	return nil
}

// textField is a text field of a spec and its JSON name.
type textField struct{ name, text string }

func (s *ProcessSpec) words() []textField {
	return []textField{
		{"namespace", s.Namespace},
		{"name", s.Name},
		{"value_key", s.ValueKey},
		{"proc_name", s.ProcName},
		{"account", s.Account},
		{"func_id", s.FuncID},
		{"instance_id", s.InstanceID},
		{"contact", s.Contact},
	}
}

func (s *ProcessSpec) paths() []textField {
	return []textField{
		{"setup_path", s.SetupPath},
		{"pid_path", s.PidPath},
		{"config_path", s.ConfigPath},
		{"log_path", s.LogPath},
	}
}

func (s *ProcessSpec) commands() []textField {
	c := &s.Control
	return []textField{
		{"control.start", c.Start},
		{"control.stop", c.Stop},
		{"control.restart", c.Restart},
		{"control.reload", c.Reload},
		{"control.kill", c.Kill},
		{"control.version", c.Version},
		{"control.health", c.Health},
		{"alive.crontab", s.Alive.Crontab},
	}
}

func (s *ProcessSpec) boundLabels() error {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		value := s.Labels[name]
		size += len(name) + len(value)
		if !json.Valid(value) || strings.HasPrefix(string(value), "{") || strings.HasPrefix(string(value), "[") {
			return &FieldError{"labels", fmt.Sprintf("the value of %q is not a string, number or boolean", clip(name))}
		}
	}
	if size > MaxLabelBytes {
		return &FieldError{"labels", fmt.Sprintf("are %d bytes long, at most %d are allowed", size, MaxLabelBytes)}
	}
	return nil
}

// Validate checks, in addition to [ProcessSpec.ValidateBounds], that the spec is
// complete enough for action: it identifies a process, its paths are absolute,
// and it contains every control command without a built-in replacement.
func (s *ProcessSpec) Validate(action Action) error {
	errs := []error{s.ValidateBounds()}
	if (s.Namespace == "") != (s.Name == "") {
		errs = append(errs, &FieldError{"namespace", "namespace and name identify a process together; give both or neither"})
	}
	if s.ProcName == "" {
		errs = append(errs, &FieldError{"proc_name", "is required: the name of the program as the host sees it, for example nginx"})
	}
	if s.SetupPath == "" && s.ValueKey == "" && s.Name == "" {
		errs = append(errs, &FieldError{"setup_path", "is required unless namespace and name, or value_key, identify the process"})
	}
	for _, f := range []textField{{"setup_path", s.SetupPath}, {"pid_path", s.PidPath}} {
		if f.text != "" && !IsAbsolutePath(f.text) {
			errs = append(errs, &FieldError{f.name, fmt.Sprintf("%q is not an absolute path", clip(f.text))})
		}
	}
	if missing := s.MissingCommand(action); missing != "" {
		errs = append(errs, &FieldError{missing, fmt.Sprintf("is required for %s: nothing can stand in for it", action)})
	}
	return errors.Join(errs...)
}

// MissingCommand returns the JSON name of the control command that action
// requires and the spec lacks, or "". Stop and kill have built-in defaults, and
// restart needs only the start command.
func (s *ProcessSpec) MissingCommand(action Action) string {
	switch action {
	case ActionStart, ActionSupervise:
		if s.Control.Start == "" {
			return "control.start"
		}
	case ActionReload:
		if s.Control.Reload == "" {
			return "control.reload"
		}
	case ActionRestart:
		if s.Control.Restart == "" && s.Control.Start == "" {
			return "control.restart"
		}
	case ActionStop, ActionKill, ActionStatus, ActionRelease:
	}
	return ""
}

// ValidateIdentity checks that Namespace and Name are set and within bounds.
func (s *ProcessSpec) ValidateIdentity() error {
	var errs []error
	for _, f := range []textField{{"namespace", s.Namespace}, {"name", s.Name}} {
		if f.text == "" {
			errs = append(errs, &FieldError{f.name, "is required"})
		}
		errs = append(errs, boundText(f, MaxKey))
	}
	return errors.Join(errs...)
}

var windowsPath = regexp.MustCompile(`^(?:[A-Za-z]:[\\/]|\\\\)`)

// IsAbsolutePath reports whether p is an absolute path on Unix or Windows: the
// server does not know the operating system of the host.
func IsAbsolutePath(p string) bool { return path.IsAbs(p) || IsWindowsPath(p) }

// IsWindowsPath reports whether p is an absolute path of Windows.
func IsWindowsPath(p string) bool { return windowsPath.MatchString(p) }

func within(field string, d Duration, low, high time.Duration) error {
	if d.Std() >= low && d.Std() <= high {
		return nil
	}
	return &FieldError{field, fmt.Sprintf("%s is out of range: %s to %s", d, low, high)}
}

func between(field string, n, high int) error {
	if n >= 0 && n <= high {
		return nil
	}
	return &FieldError{field, fmt.Sprintf("%d is out of range: 0 to %d", n, high)}
}

// percent accepts values above 100: such a limit is never exceeded.
func percent(field string, v float64) error {
	if v >= 0 && !math.IsInf(v, 0) {
		return nil
	}
	return &FieldError{field, fmt.Sprintf("%v is not a percentage of 0 or more", v)}
}

func oneOf(field, word string, words ...string) error {
	if slices.Contains(words, word) {
		return nil
	}
	return &FieldError{field, fmt.Sprintf("%q is unknown; choose one of %s", clip(word), strings.Join(words, ", "))}
}
