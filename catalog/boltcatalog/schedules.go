package boltcatalog

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet/catalog"
)

func scheduleKey(namespace, name string) []byte { return []byte(namespace + "\x00" + name) }

// SetSchedule stores a schedule.
func (s *Catalog) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	if err := schedule.Validate(); err != nil {
		return fmt.Errorf("set a schedule: %w", err)
	}
	key := scheduleKey(schedule.Namespace, schedule.Name)
	return change(ctx, s, func(t *tx) error {
		var known catalog.Schedule
		if _, err := t.Get(bucketSchedules, key, &known); err != nil {
			return err
		}
		schedule.Last = known.Last
		return t.Put(bucketSchedules, key, schedule)
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
			var schedule catalog.Schedule
			_, err := t.Get(bucketSchedules, key, &schedule)
			all = append(all, schedule)
			return err
		})
		return all, err
	})
}

// RecordRun stores the last run of a schedule.
func (s *Catalog) RecordRun(ctx context.Context, namespace, name string, run catalog.ScheduleRun) error {
	key := scheduleKey(namespace, name)
	return change(ctx, s, func(t *tx) error {
		var schedule catalog.Schedule
		found, err := t.Get(bucketSchedules, key, &schedule)
		if err != nil || !found || schedule.Last.Slot.After(run.Slot) {
			return err
		}
		schedule.Last = run
		return t.Put(bucketSchedules, key, schedule)
	})
}
