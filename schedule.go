package procfleet

import (
	"errors"
	"fmt"
	"time"
)

// Overlap says what a schedule does at a time at which its last task has not ended.
type Overlap string

// Values of [Overlap].
const (
	OverlapSkip    Overlap = "skip"    // no task at this time
	OverlapQueue   Overlap = "queue"   // a task when the last one has ended; of several times the last one counts
	OverlapReplace Overlap = "replace" // the last task is canceled, and items that agents have begun go on
)

// Missed says what a schedule does after times at which no dispatcher ran.
type Missed string

// Values of [Missed].
const (
	MissedSkip    Missed = "skip"     // no task
	MissedRunOnce Missed = "run_once" // one task, for the last of the times
)

// MaxJitter is the maximum of [ScheduleRule].Jitter.
const MaxJitter = 24 * time.Hour

// ScheduleRule says when a schedule creates tasks.
type ScheduleRule struct {
	Cron     string `json:"cron"`                // minute, hour, day of month, month and day of week
	TimeZone string `json:"time_zone,omitempty"` // of Cron, a name of the IANA database such as Europe/Berlin; default UTC
	// Jitter delays each time by a part of this duration that differs between schedules and times, so
	// that not all schedules create their tasks together. It ends before the next time.
	Jitter  Duration `json:"jitter,omitempty"`
	Overlap Overlap  `json:"overlap,omitempty"` // default [OverlapSkip]
	Missed  Missed   `json:"missed,omitempty"`  // default [MissedSkip]
	Paused  bool     `json:"paused,omitempty"`  // creates no tasks
}

// Validate returns a [FieldError] for each invalid field. It does not parse Cron.
func (r *ScheduleRule) Validate() error {
	var errs []error
	if r.Cron == "" {
		errs = append(errs, &FieldError{"cron", "is missing"})
	}
	if d := r.Jitter.Std(); d < 0 || d > MaxJitter {
		errs = append(errs, &FieldError{"jitter", fmt.Sprintf("%s is out of range: 0 s to %s", d, MaxJitter)})
	}
	if r.Overlap != "" {
		errs = append(errs, oneOf("overlap", r.Overlap, OverlapSkip, OverlapQueue, OverlapReplace))
	}
	if r.Missed != "" {
		errs = append(errs, oneOf("missed", r.Missed, MissedSkip, MissedRunOnce))
	}
	return errors.Join(errs...)
}
