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
		oneOf("alive.type", s.Alive.Type, Resident, Once, Manual, Periodic),
		oneOf("control.shell", s.Control.Shell, "", ShellSh, ShellBat, ShellPs1),
		s.boundLabels(),
		s.boundUnregistered(),
	)
}

func (s *ProcessSpec) boundTimes() error {
	a := &s.Alive
	errs := []error{
		within("alive.op_timeout", a.OpTimeout, time.Second, MaxOpTimeout),
		within("alive.start_check_begin", a.StartCheckBegin, 0, MaxCheck),
		within("alive.start_check_end", a.StartCheckEnd, 0, MaxCheck),
		within("alive.stop_check", a.StopCheck, 0, MaxCheck),
		within("alive.stop_grace", a.StopGrace, 0, MaxCheck),
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
	c := &s.Control
	var errs []error
	for _, f := range []struct {
		name, text string
		limit      int
	}{
		{"namespace", s.Namespace, MaxKey},
		{"name", s.Name, MaxKey},
		{"value_key", s.ValueKey, MaxKey},
		{"proc_name", s.ProcName, MaxKey},
		{"account", s.Account, MaxKey},
		{"func_id", s.FuncID, MaxKey},
		{"instance_id", s.InstanceID, MaxKey},
		{"contact", s.Contact, MaxKey},
		{"setup_path", s.SetupPath, MaxPath},
		{"pid_path", s.PidPath, MaxPath},
		{"config_path", s.ConfigPath, MaxPath},
		{"log_path", s.LogPath, MaxPath},
		{"control.start", c.Start, MaxCommand},
		{"control.stop", c.Stop, MaxCommand},
		{"control.restart", c.Restart, MaxCommand},
		{"control.reload", c.Reload, MaxCommand},
		{"control.kill", c.Kill, MaxCommand},
		{"control.version", c.Version, MaxCommand},
		{"control.health", c.Health, MaxCommand},
		{"alive.crontab", s.Alive.Crontab, MaxCommand},
	} {
		errs = append(errs, boundText(f.name, f.text, f.limit))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Environment)) {
		errs = append(errs, boundText("control.env", name+"="+c.Environment[name], MaxCommand))
	}
	return errors.Join(errs...)
}

// boundUnregistered rejects a spec with [ProcessSpec.Unregistered], which only the server sets.
func (s *ProcessSpec) boundUnregistered() error {
	if !s.Unregistered {
		return nil
	}
	return &FieldError{"unregistered", "is not for callers; leave it out"}
}

// boundText validates a text of at most limit bytes.
func boundText(field, text string, limit int) error {
	switch {
	case len(text) > limit:
		return &FieldError{field, fmt.Sprintf("is %d bytes long, at most %d are allowed", len(text), limit)}
	case !utf8.ValidString(text):
		return &FieldError{field, "is not valid UTF-8"}
	case strings.ContainsRune(text, 0):
		return &FieldError{field, "contains a NUL character"}
	}
	return nil
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
	for _, f := range [][2]string{{"setup_path", s.SetupPath}, {"pid_path", s.PidPath}} {
		if name, path := f[0], f[1]; path != "" && !IsAbsolutePath(path) {
			errs = append(errs, &FieldError{name, fmt.Sprintf("%q is not an absolute path", clip(path))})
		}
	}
	if missing := s.missingCommand(action); missing != "" {
		errs = append(errs, &FieldError{missing, fmt.Sprintf("is required for %s: nothing can stand in for it", action)})
	}
	return errors.Join(errs...)
}

// missingCommand returns the JSON name of the control command that action
// requires and the spec lacks, or "". Stop and kill have built-in defaults, and
// restart needs only the start command.
func (s *ProcessSpec) missingCommand(action Action) string {
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
	for _, f := range [][2]string{{"namespace", s.Namespace}, {"name", s.Name}} {
		name, text := f[0], f[1]
		if text == "" {
			errs = append(errs, &FieldError{name, "is required"})
		}
		errs = append(errs, boundText(name, text, MaxKey))
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

func oneOf[T ~string](field string, word T, words ...T) error {
	if slices.Contains(words, word) {
		return nil
	}
	names := make([]string, len(words))
	for i := range words {
		names[i] = string(words[i])
	}
	return &FieldError{field, fmt.Sprintf("%q is unknown; choose one of %s", clip(string(word)), strings.Join(names, ", "))}
}
