package catalog

import (
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/cronrule"
)

// Closure is a time at which maintenance windows deny operations. The zero value denies none.
type Closure struct {
	Window string    // name of the window that denies operations, or that would allow them
	Until  time.Time // end of a window that denies, or next begin of one that allows; zero = unknown
	Effect procfleet.Effect
}

// String describes the closure: which window it is and when it ends.
func (c Closure) String() string {
	until := ""
	if !c.Until.IsZero() {
		until = " until " + c.Until.UTC().Format(time.RFC3339)
	}
	if c.Effect == procfleet.EffectDeny {
		return fmt.Sprintf("window %s denies operations%s", c.Window, until)
	}
	return fmt.Sprintf("window %s is closed%s", c.Window, until)
}

// Closed returns the closure of a host at a time. The function applies reports whether a window is
// for the host.
func (p *RolloutPolicies) Closed(at time.Time, applies func(*procfleet.MaintenanceWindow) bool) (Closure, bool) {
	var next Closure
	limited, allowed := false, false
	for i := range p.Windows {
		w := &p.Windows[i]
		if !applies(w) {
			continue
		}
		open, change := WindowState(w, at)
		switch {
		case w.Effect == procfleet.EffectDeny && open:
			return Closure{w.Name, change, w.Effect}, true
		case w.Effect == procfleet.EffectDeny:
		case open:
			allowed = true
		case !limited || earlier(change, next.Until):
			limited, next = true, Closure{w.Name, change, w.Effect}
		}
	}
	return next, limited && !allowed
}

// earlier reports whether a is before b. A zero time is never.
func earlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// WindowState reports whether a valid window is open at a time, and until when it remains so; zero = it
// does not change. With overlapping repetitions that is the end of the first one.
func WindowState(w *procfleet.MaintenanceWindow, at time.Time) (open bool, until time.Time) {
	if w.Cron == "" {
		switch {
		case at.Before(w.From):
			return false, w.From
		case w.Until.IsZero() || at.Before(w.Until):
			return true, w.Until
		}
		return false, time.Time{}
	}
	begins, err := timesOf(w.Cron, w.TimeZone)
	if err != nil {
		return false, time.Time{} // stores refuse such a window
	}
	begin := begins.Next(at.Add(-w.Duration.Std()))
	if begin.IsZero() || begin.After(at) {
		return false, begin
	}
	return true, begin.Add(w.Duration.Std())
}

// timesOf parses a rule of five fields in a time zone of the IANA database.
func timesOf(rule, zone string) (cron.Schedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, &procfleet.FieldError{Field: "time_zone", Problem: fmt.Sprintf("%.80q is not a name of the IANA database, such as Europe/Berlin", zone)}
	}
	times, err := cronrule.Parse(rule)
	if err != nil {
		return nil, &procfleet.FieldError{Field: "cron", Problem: err.Error()}
	}
	times.Location = location
	return times, nil
}

// validWindows returns a [procfleet.FieldError] for each invalid field of windows.
func validWindows(windows []procfleet.MaintenanceWindow) error {
	var errs []error
	if len(windows) > MaxWindows {
		errs = append(errs, &procfleet.FieldError{Field: "windows", Problem: fmt.Sprintf("has %d windows, at most %d are allowed", len(windows), MaxWindows)})
	}
	names := map[string]bool{}
	for i := range windows {
		w := &windows[i]
		err := w.Validate()
		switch {
		case !validPolicyName(w.Name):
			err = errors.Join(err, &procfleet.FieldError{Field: "name", Problem: fmt.Sprintf(
				"%.80q is no name: it has 1 to %d letters, digits, dots, hyphens and underscores", w.Name, MaxPolicyName)})
		case names[w.Name]:
			err = errors.Join(err, &procfleet.FieldError{Field: "name", Problem: fmt.Sprintf("%q is there twice", w.Name)})
		}
		names[w.Name] = true
		if w.Cron != "" {
			_, invalid := timesOf(w.Cron, w.TimeZone)
			err = errors.Join(err, invalid)
		}
		errs = append(errs, procfleet.In(fmt.Sprintf("windows[%d]", i), err))
	}
	return errors.Join(errs...)
}
