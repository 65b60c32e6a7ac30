package dialect

import (
	"errors"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// decodeScheduledTask decodes the task of a schedule, which has the form of POST /v1/tasks.
var decodeScheduledTask = strictly[v1.TaskRequest](decoded(decodeNativeBody, decodeNativeTask))

func decodeScheduleChange(r *Request) (ScheduleChange, error) {
	var params v1.ScheduleRequest
	if err := decodeNativeBody(r, &params); err != nil {
		return ScheduleChange{}, err
	}
	namespace, err := policyNamespace(r)
	if err != nil {
		return ScheduleChange{}, err
	}
	q := ScheduleChange{Schedule: catalog.Schedule{Namespace: namespace, Name: r.Wildcards["name"], ScheduleRule: params.ScheduleRule, Task: params.Task}}
	if params.Task == nil {
		return q, required("task")
	}
	q.Submission, err = decodeScheduledTask(&Request{Body: params.Task, MaxItems: r.MaxItems})
	if f, wrong := errors.AsType[*Error](err); wrong {
		inTask := *f
		inTask.Kind, inTask.Field = InvalidField, "task."+f.Field
		err = &inTask
	}
	return q, errors.Join(err, q.Schedule.Validate())
}

func decodeScheduleQuery(r *Request) (ScheduleQuery, error) {
	namespace, err := policyNamespace(r)
	return ScheduleQuery{Namespace: namespace}, err
}

func decodeScheduleRemoval(r *Request) (ScheduleRemoval, error) {
	namespace, err := policyNamespace(r)
	return ScheduleRemoval{Namespace: namespace, Name: r.Wildcards["name"]}, err
}

func nativeSchedule(s *PlannedSchedule) v1.Schedule {
	shown := v1.Schedule{
		Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Jitter: s.Jitter, Overlap: s.Overlap, Missed: s.Missed, Paused: s.Paused,
		Task: s.Task, Application: s.Application, User: s.User, SetAt: s.SetAt,
	}
	if shown.TimeZone == "" {
		shown.TimeZone = "UTC"
	}
	if shown.Overlap == "" {
		shown.Overlap = procfleet.OverlapSkip
	}
	if shown.Missed == "" {
		shown.Missed = procfleet.MissedSkip
	}
	if !s.Next.IsZero() {
		shown.NextAt = &s.Next
	}
	if s.Last != (catalog.ScheduleRun{}) {
		shown.Last = &v1.ScheduleRun{At: s.Last.Slot, Task: s.Last.Task, Problem: s.Last.Problem}
	}
	return shown
}

func nativeScheduleSet(_ *ScheduleChange, s PlannedSchedule, _ string) Reply {
	return ok(nativeSchedule(&s))
}

func nativeSchedules(_ *ScheduleQuery, all []PlannedSchedule, _ string) Reply {
	list := v1.Schedules{Schedules: make([]v1.Schedule, len(all))}
	for i := range all {
		list.Schedules[i] = nativeSchedule(&all[i])
	}
	return ok(list)
}

func nativeScheduleRemoved(_ *ScheduleRemoval, existed bool, _ string) Reply {
	return ok(v1.ScheduleRemoved{Removed: existed})
}
