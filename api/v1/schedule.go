package v1

import (
	"encoding/json"
	"time"

	"github.com/procfleet/procfleet"
)

// ScheduleRequest is a schedule without its name.
type ScheduleRequest struct {
	procfleet.ScheduleRule
	// Task is the request that creates the task at each time, a [TaskRequest].
	Task json.RawMessage `json:"task"`
}

// Schedules are the schedules of a namespace, sorted by name.
type Schedules struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedule creates a task at each time of Cron.
type Schedule struct {
	Name     string             `json:"name"`
	Cron     string             `json:"cron"`
	TimeZone string             `json:"time_zone"`
	Jitter   procfleet.Duration `json:"jitter"`
	Overlap  procfleet.Overlap  `json:"overlap"`
	Missed   procfleet.Missed   `json:"missed"`
	Paused   bool               `json:"paused"`
	Task     json.RawMessage    `json:"task"`
	// Application and User are the caller that set the schedule. Its tasks are theirs.
	Application string       `json:"application"`
	User        string       `json:"user"`
	SetAt       time.Time    `json:"set_at"`
	NextAt      *time.Time   `json:"next_at"` // without jitter; nil without a next time
	Last        *ScheduleRun `json:"last"`    // nil before the first time
}

// ScheduleRun is the outcome of one time of a schedule.
type ScheduleRun struct {
	At      time.Time        `json:"at"`
	Task    procfleet.TaskID `json:"task"`    // "" without a task
	Problem string           `json:"problem"` // why there is no task; "" with a task
}

// ScheduleRemoved reports whether a schedule existed.
type ScheduleRemoved struct {
	Removed bool `json:"removed"`
}
