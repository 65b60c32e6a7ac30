package catalogtest

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func scheduleChecks() []Check {
	return []Check{
		{Name: "schedules are kept whole and in order", Fn: schedulesWhole},
		{Name: "a schedule is replaced without its last run, and removed with it", Fn: schedulesReplaced},
		{Name: "the last run of a schedule never goes back", Fn: runsInOrder},
		{Name: "invalid schedules are refused", Fn: schedulesRefused},
	}
}

func wholeSchedule(namespace, name string) catalog.Schedule {
	return catalog.Schedule{
		Namespace: namespace, Name: name,
		ScheduleRule: procfleet.ScheduleRule{
			Cron: "30 3 * * 1-5", TimeZone: "Europe/Berlin", Jitter: procfleet.Duration(time.Minute),
			Overlap: procfleet.OverlapQueue, Missed: procfleet.MissedRunOnce, Paused: true,
		},
		Task:        json.RawMessage(`{"operations":[{"action":"restart","process":{"name":"a \"quoted\" name"}}]}`),
		Application: "shop", User: "admin", SetAt: time.Date(2026, 11, 21, 5, 35, 22, 123456000, time.UTC),
	}
}

func runAt(minute int) catalog.ScheduleRun {
	return catalog.ScheduleRun{Slot: time.Date(2026, 11, 22, 3, minute, 0, 0, time.UTC), Task: procfleet.TaskID("GSETASK:20261122033000:1")}
}

func setSchedule(ctx context.Context, t T, s Subject, schedule catalog.Schedule) {
	t.Helper()
	must(t, s.SetSchedule(ctx, schedule), "set a schedule")
}

func recordRun(ctx context.Context, t T, s Subject, name string, r catalog.ScheduleRun) {
	t.Helper()
	must(t, s.RecordRun(ctx, "2", name, r), "record a run")
}

func schedules(ctx context.Context, t T, s Subject) []catalog.Schedule {
	t.Helper()
	all, err := s.Schedules(ctx)
	must(t, err, "schedules")
	return all
}

func schedulesWhole(ctx context.Context, t T, s Subject) {
	want := []catalog.Schedule{wholeSchedule("2", "a"), wholeSchedule("2", "b"), wholeSchedule("2", "run"), wholeSchedule("3", "a"), wholeSchedule("acme.2", "a")}
	for _, schedule := range slices.Backward(want) {
		setSchedule(ctx, t, s, schedule)
	}
	equal(t, "schedules", schedules(ctx, t, s), want)
	want[1].Last = runAt(30)
	want[1].Last.Task, want[1].Last.Problem = "", "the task of the last time \"still\" runs"
	recordRun(ctx, t, s, "b", want[1].Last)
	equal(t, "schedules after a run", schedules(ctx, t, s), want)
}

func schedulesReplaced(ctx context.Context, t T, s Subject) {
	setSchedule(ctx, t, s, wholeSchedule("2", "a"))
	recordRun(ctx, t, s, "a", runAt(30))
	other := wholeSchedule("2", "a")
	other.Cron, other.TimeZone, other.Paused = "* * * * *", "", false
	setSchedule(ctx, t, s, other)
	other.Last = runAt(30)
	equal(t, "after the change", schedules(ctx, t, s), []catalog.Schedule{other})
	for _, want := range []bool{true, false} {
		existed, err := s.RemoveSchedule(ctx, "2", "a")
		must(t, err, "remove a schedule")
		equal(t, "existed", existed, want)
	}
	recordRun(ctx, t, s, "a", runAt(31))
	setSchedule(ctx, t, s, wholeSchedule("2", "a"))
	equal(t, "set again", schedules(ctx, t, s), []catalog.Schedule{wholeSchedule("2", "a")})
}

func runsInOrder(ctx context.Context, t T, s Subject) {
	want := wholeSchedule("2", "a")
	setSchedule(ctx, t, s, want)
	later := runAt(31)
	recordRun(ctx, t, s, "a", later)
	recordRun(ctx, t, s, "a", runAt(30))
	want.Last = later
	equal(t, "after an earlier run", schedules(ctx, t, s), []catalog.Schedule{want})
	want.Last.Problem = "again"
	recordRun(ctx, t, s, "a", want.Last)
	equal(t, "after the same run", schedules(ctx, t, s), []catalog.Schedule{want})
}

func schedulesRefused(ctx context.Context, t T, s Subject) {
	for what, change := range map[string]func(*catalog.Schedule){
		"without a namespace": func(s *catalog.Schedule) { s.Namespace = "" },
		"without a name":      func(s *catalog.Schedule) { s.Name = "" },
		"a long name":         func(s *catalog.Schedule) { s.Name = strings.Repeat("n", catalog.MaxPolicyName+1) },
		"a crontab":           func(s *catalog.Schedule) { s.Cron = "99 * * * *" },
		"a time zone":         func(s *catalog.Schedule) { s.TimeZone = "Berlin" },
		"a jitter":            func(s *catalog.Schedule) { s.Jitter = -1 },
		"an overlap":          func(s *catalog.Schedule) { s.Overlap = "both" },
		"missed":              func(s *catalog.Schedule) { s.Missed = "all" },
		"no task":             func(s *catalog.Schedule) { s.Task = nil },
		"a long task": func(s *catalog.Schedule) {
			s.Task = json.RawMessage(`"` + strings.Repeat("x", catalog.MaxScheduleTask) + `"`)
		},
	} {
		invalid := wholeSchedule("2", "a")
		change(&invalid)
		if err := s.SetSchedule(ctx, invalid); err == nil {
			t.Errorf("%s: the schedule was stored", what)
		}
	}
	equal(t, "number of schedules", len(schedules(ctx, t, s)), 0)
}
