package boltcatalog

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet/catalog"
)

// scheduleRecord is a schedule with its last run.
type scheduleRecord struct {
	catalog.Schedule
	Last catalog.ScheduleRun
}

func scheduleKey(namespace, name string) []byte { return []byte(namespace + "\x00" + name) }

// SetSchedule stores a schedule.
func (s *Catalog) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	if err := schedule.Validate(); err != nil {
		return fmt.Errorf("set a schedule: %w", err)
	}
	key := scheduleKey(schedule.Namespace, schedule.Name)
	return change(ctx, s, func(t *tx) error {
		var r scheduleRecord
		if _, err := t.Get(bucketSchedules, key, &r); err != nil {
			return err
		}
		return t.Put(bucketSchedules, key, scheduleRecord{schedule, r.Last})
	})
}

// RemoveSchedule removes a schedule.
func (s *Catalog) RemoveSchedule(ctx context.Context, namespace, name string) (existed bool, err error) {
	key := scheduleKey(namespace, name)
	return update(ctx, s, func(t *tx) (bool, error) {
		b := t.Bucket(bucketSchedules)
		return b.Get(key) != nil, b.Delete(key)
	})
}

// Schedules returns all schedules, sorted by namespace and name.
func (s *Catalog) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Schedule, error) {
		var all []catalog.Schedule
		err := t.Bucket(bucketSchedules).ForEach(func(key, _ []byte) error {
			var r scheduleRecord
			_, err := t.Get(bucketSchedules, key, &r)
			r.Schedule.Last = r.Last
			all = append(all, r.Schedule)
			return err
		})
		return all, err
	})
}

// RecordRun stores the last run of a schedule.
func (s *Catalog) RecordRun(ctx context.Context, namespace, name string, run catalog.ScheduleRun) error {
	key := scheduleKey(namespace, name)
	return change(ctx, s, func(t *tx) error {
		var r scheduleRecord
		found, err := t.Get(bucketSchedules, key, &r)
		if err != nil || !found || r.Last.Slot.After(run.Slot) {
			return err
		}
		r.Last = run
		return t.Put(bucketSchedules, key, r)
	})
}
