package procfleet

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Effect says what a maintenance window does to operations on its hosts.
type Effect string

// Values of [Effect]. A host with windows that allow operations may only be operated while one of
// them is open, and never while a window that denies them is open.
const (
	EffectAllow Effect = "allow"
	EffectDeny  Effect = "deny"
)

// Limits of maintenance windows.
const (
	MaxWindow       = 7 * 24 * time.Hour // maximum duration of a window that repeats
	MaxWindowGroups = 100                // maximum number of groups of a window
)

// MaintenanceWindow allows or denies operations that change processes, at some times. It repeats
// with Cron, and is open once with From and Until.
type MaintenanceWindow struct {
	Name   string `json:"name"` // up to 64 letters, digits, dots, hyphens and underscores
	Effect Effect `json:"effect"`
	// Cron has the begins: minute, hour, day of month, month and day of week.
	Cron     string    `json:"cron,omitempty"`
	TimeZone string    `json:"time_zone,omitempty"` // of Cron, a name of the IANA database such as Europe/Berlin; default UTC
	Duration Duration  `json:"duration,omitempty"`  // from each begin, 1 minute to [MaxWindow]
	From     time.Time `json:"from,omitzero"`       // zero: no begin
	Until    time.Time `json:"until,omitzero"`      // zero: no end
	// By and Groups name the hosts; without them the window is for all hosts.
	HostGrouping
	Groups []string `json:"groups,omitempty"`
}

// Validate returns a [FieldError] for each invalid field. It does not parse Cron.
func (w *MaintenanceWindow) Validate() error {
	errs := []error{oneOf("effect", w.Effect, EffectAllow, EffectDeny)}
	if w.Cron == "" {
		errs = append(errs, w.validateOnce())
	} else {
		errs = append(errs, w.validateRepeated())
	}
	if w.HostGrouping != (HostGrouping{}) || len(w.Groups) > 0 {
		errs = append(errs, w.validate())
		if n := len(w.Groups); n == 0 || n > MaxWindowGroups {
			errs = append(errs, &FieldError{"groups", fmt.Sprintf("has %d groups, 1 to %d are allowed", n, MaxWindowGroups)})
		}
	}
	return errors.Join(errs...)
}

func (w *MaintenanceWindow) validateOnce() error {
	var errs []error
	if w.TimeZone != "" || w.Duration != 0 {
		errs = append(errs, &FieldError{"cron", "is missing: time_zone and duration need it"})
	}
	if !w.From.IsZero() && !w.Until.IsZero() && !w.From.Before(w.Until) {
		errs = append(errs, &FieldError{"until", "is not after from"})
	}
	return errors.Join(errs...)
}

func (w *MaintenanceWindow) validateRepeated() error {
	var errs []error
	if d := w.Duration.Std(); d < time.Minute || d > MaxWindow {
		errs = append(errs, &FieldError{"duration", fmt.Sprintf("%s is out of range: %s to %s", d, time.Minute, MaxWindow)})
	}
	if !w.From.IsZero() || !w.Until.IsZero() {
		errs = append(errs, &FieldError{"cron", "is not allowed with from and until"})
	}
	return errors.Join(errs...)
}

// ForAll reports whether the window is for all hosts.
func (w *MaintenanceWindow) ForAll() bool { return w.By == "" }

// For reports whether the window is for a host in groups.
func (w *MaintenanceWindow) For(groups []string) bool {
	return w.ForAll() || slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(w.Groups, g) })
}
