package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
)

// setSchedule stores a schedule. The caller needs the permission for its task, too.
func (e *exchange) setSchedule(ctx context.Context, q *dialect.ScheduleChange, _ string) (dialect.PlannedSchedule, error) {
	if err := e.who.MaySubmit(&q.Submission); err != nil {
		return dialect.PlannedSchedule{}, err
	}
	s := q.Schedule
	all, err := e.api.store.Schedules(ctx)
	if err != nil {
		return dialect.PlannedSchedule{}, fmt.Errorf("read the schedules: %w", err)
	}
	at := slices.IndexFunc(all, func(known catalog.Schedule) bool { return known.Namespace == s.Namespace && known.Name == s.Name })
	if at < 0 && len(all) >= catalog.MaxSchedules {
		return dialect.PlannedSchedule{}, tooLarge("there are %d schedules, at most %d are allowed; remove some", len(all), catalog.MaxSchedules)
	}
	if s.SetAt, err = e.api.store.Now(ctx); err != nil {
		return dialect.PlannedSchedule{}, fmt.Errorf("read the store's clock: %w", err)
	}
	s.Application, s.User = e.who.Application, e.who.User
	if err := e.auditChange(ctx, scheduleRecord("set schedule", s.Namespace, s.Name)); err != nil {
		return dialect.PlannedSchedule{}, err
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.api.store.SetSchedule(ctx, s); err != nil {
		return dialect.PlannedSchedule{}, fmt.Errorf("store schedule %s: %w", s.Name, err)
	}
	if at >= 0 {
		s.Last = all[at].Last
	}
	return dialect.PlannedSchedule{Schedule: s, Next: s.Next(s.SetAt)}, nil
}

func scheduleRecord(change, namespace, name string) audit.Record {
	record := audit.Record{Change: change, Business: namespace}
	record.AddProcess(name)
	return record
}

func (e *exchange) listSchedules(ctx context.Context, q *dialect.ScheduleQuery, _ string) ([]dialect.PlannedSchedule, error) {
	all, err := e.api.store.Schedules(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the schedules: %w", err)
	}
	all = slices.DeleteFunc(all, func(s catalog.Schedule) bool { return s.Namespace != q.Namespace })
	if len(all) == 0 {
		return nil, nil
	}
	now, err := e.api.store.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the store's clock: %w", err)
	}
	planned := make([]dialect.PlannedSchedule, len(all))
	for i, s := range all {
		planned[i].Schedule = s
		if !s.Paused {
			planned[i].Next = s.Next(now)
		}
	}
	return planned, nil
}

func (e *exchange) removeSchedule(ctx context.Context, q *dialect.ScheduleRemoval, _ string) (bool, error) {
	if err := e.auditChange(ctx, scheduleRecord("remove schedule", q.Namespace, q.Name)); err != nil {
		return false, err
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	existed, err := e.api.store.RemoveSchedule(ctx, q.Namespace, q.Name)
	if err != nil {
		return false, fmt.Errorf("remove schedule %s: %w", q.Name, err)
	}
	return existed, nil
}
