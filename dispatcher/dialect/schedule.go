package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// SetSchedule is the endpoint that stores a schedule.
type SetSchedule = Codec[ScheduleChange, PlannedSchedule]

// ScheduleChange is a request to store a schedule. Submission is its decoded task.
type ScheduleChange struct {
	Schedule   catalog.Schedule     `json:"schedule"`
	Submission procfleet.Submission `json:"submission"`
}

// InBusiness returns the namespace of the schedule.
func (q *ScheduleChange) InBusiness() string { return q.Schedule.Namespace }

// PlannedSchedule is a schedule with its next time, without jitter; zero without one.
type PlannedSchedule struct {
	catalog.Schedule
	Next time.Time
}

// ListSchedules is the endpoint that returns the schedules of a namespace.
type ListSchedules = Codec[ScheduleQuery, []PlannedSchedule]

// ScheduleQuery requests the schedules of a namespace.
type ScheduleQuery struct {
	Namespace string `json:"namespace"`
}

// InBusiness returns the namespace.
func (q *ScheduleQuery) InBusiness() string { return q.Namespace }

// RemoveSchedule is the endpoint that removes a schedule. The result reports whether it existed.
type RemoveSchedule = Codec[ScheduleRemoval, bool]

// ScheduleRemoval is a request to remove a schedule.
type ScheduleRemoval struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// InBusiness returns the namespace of the schedule.
func (q *ScheduleRemoval) InBusiness() string { return q.Namespace }
