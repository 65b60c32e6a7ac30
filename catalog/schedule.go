package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/procfleet/procfleet"
)

// Limits of schedules.
const (
	MaxSchedules    = 1000     // maximum number of schedules of all namespaces; callers keep to it
	MaxScheduleTask = 64 << 10 // maximum length of a schedule's task in bytes
)

// Schedule creates a task at each time of a crontab.
type Schedule struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	procfleet.ScheduleRule
	// Task is the request that creates the task, in the form of the native API.
	Task json.RawMessage `json:"task"`
	// Application and User are the caller that set the schedule. Its tasks are theirs.
	Application string    `json:"application,omitempty"`
	User        string    `json:"user,omitempty"`
	SetAt       time.Time `json:"set_at"` // earlier times create no task
	// Last is the last time that was handled. It is kept when the schedule is replaced.
	Last ScheduleRun `json:"last,omitzero"`
}

// ScheduleRun is the outcome of one time of a schedule. The zero value is none.
type ScheduleRun struct {
	Slot    time.Time        `json:"slot"` // the time, without jitter; in whole minutes
	Task    procfleet.TaskID `json:"task,omitempty"`
	Problem string           `json:"problem,omitempty"` // why there is no task; "" with a task
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (s *Schedule) Validate() error {
	errs := []error{validName("namespace", s.Namespace), s.ScheduleRule.Validate()}
	if !validPolicyName(s.Name) {
		errs = append(errs, &procfleet.FieldError{Field: "name", Problem: fmt.Sprintf(
			"%.80q is no name: it has 1 to %d letters, digits, dots, hyphens and underscores", s.Name, MaxPolicyName)})
	}
	if s.Cron != "" {
		_, err := timesOf(s.Cron, s.TimeZone)
		errs = append(errs, err)
	}
	switch {
	case len(s.Task) > MaxScheduleTask:
		errs = append(errs, &procfleet.FieldError{Field: "task", Problem: fmt.Sprintf("has %d bytes, at most %d are allowed", len(s.Task), MaxScheduleTask)})
	case !json.Valid(s.Task):
		errs = append(errs, &procfleet.FieldError{Field: "task", Problem: "is no JSON"})
	}
	return errors.Join(errs...)
}

// Next returns the next time after a moment, without jitter; zero if there is none.
func (s *Schedule) Next(after time.Time) time.Time {
	times, err := timesOf(s.Cron, s.TimeZone)
	if err != nil {
		return time.Time{} // stores refuse such a schedule
	}
	return times.Next(after)
}

// Due returns the last time of a valid schedule that was not handled and whose jitter has passed; zero
// without one. Earlier times count as handled with it.
func (s *Schedule) Due(now time.Time) (slot, due time.Time) {
	times, err := timesOf(s.Cron, s.TimeZone)
	if err != nil || s.Paused {
		return time.Time{}, time.Time{}
	}
	from := s.SetAt
	if s.Last.Slot.After(from) {
		from = s.Last.Slot
	}
	if slot = lastBefore(times, from, now); slot.IsZero() {
		return slot, slot
	}
	if due = slot.Add(s.delay(times, slot)); due.After(now) {
		return time.Time{}, time.Time{}
	}
	return slot, due
}

// lastBefore returns the last time of a crontab in (from, now]; zero without one. It looks at recent
// times first, so that a dense crontab needs few steps.
func lastBefore(times cron.Schedule, from, now time.Time) time.Time {
	const day = 24 * time.Hour
	for _, span := range []time.Duration{2 * time.Minute, 2 * time.Hour, 2 * day, 62 * day, now.Sub(from)} {
		begin := now.Add(-span)
		if begin.Before(from) {
			begin = from
		}
		slot := times.Next(begin)
		if slot.IsZero() || slot.After(now) {
			continue
		}
		for next := times.Next(slot); !next.IsZero() && !next.After(now); next = times.Next(next) {
			slot = next
		}
		return slot
	}
	return time.Time{}
}

// delay returns the jitter of a time. It is below the distance to the next one.
func (s *Schedule) delay(times cron.Schedule, slot time.Time) time.Duration {
	limit := s.Jitter.Std()
	if next := times.Next(slot); !next.IsZero() {
		limit = min(limit, next.Sub(slot))
	}
	if limit <= 0 {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d", s.Namespace, s.Name, slot.Unix())
	return time.Duration(h.Sum64() % uint64(limit))
}

// Schedules stores schedules by namespace and name.
type Schedules interface {
	// SetSchedule stores a schedule, or replaces one of the same name except for Last.
	SetSchedule(ctx context.Context, s Schedule) error
	// RemoveSchedule removes a schedule and reports whether it existed.
	RemoveSchedule(ctx context.Context, namespace, name string) (existed bool, err error)
	// Schedules returns all schedules, sorted by namespace and name.
	Schedules(ctx context.Context) ([]Schedule, error)
	// RecordRun stores Last of a schedule, unless it has a later time or does not exist.
	RecordRun(ctx context.Context, namespace, name string, r ScheduleRun) error
}
