package rediscatalog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// The last run of a schedule has the field of the schedule with this suffix.
const runSuffix = "\x00\x00run"

func scheduleField(namespace, name string) string { return namespace + "\x00" + name }

// recordRunScript stores the last run of a schedule.
//
// KEYS[1] hash of the schedules
// ARGV[1] field of the schedule
// ARGV[2] field of its last run
// ARGV[3] time of the run, in seconds
// ARGV[4] the time, a space and the run
// Returns 1.
var recordRunScript = redis.NewScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 1 end
local last = redis.call('HGET', KEYS[1], ARGV[2])
if last and tonumber(string.match(last, '^%-?%d+')) > tonumber(ARGV[3]) then return 1 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return 1
`)

// SetSchedule stores a schedule.
func (s *Catalog) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	err := schedule.Validate()
	schedule.Last = catalog.ScheduleRun{} // has its own field
	var packed []byte
	if err == nil {
		packed, err = json.Marshal(schedule)
	}
	if err == nil {
		err = s.conn.RunDurably(ctx, &redisconn.Call{
			Script: fieldsScript, Keys: []string{s.keys.schedules()}, Args: []any{scheduleField(schedule.Namespace, schedule.Name), packed},
		})
	}
	if err != nil {
		return fmt.Errorf("set a schedule: %w", err)
	}
	return nil
}

// removeScheduleScript removes a schedule.
//
// KEYS[1] hash of the schedules
// ARGV[1] field of the schedule
// ARGV[2] field of its last run
// Returns 1 if it existed, otherwise 0.
var removeScheduleScript = redis.NewScript(`
redis.call('HDEL', KEYS[1], ARGV[2])
return redis.call('HDEL', KEYS[1], ARGV[1])
`)

// RemoveSchedule removes a schedule. After a failure in the middle of the call, a repeated attempt
// reports that it did not exist.
func (s *Catalog) RemoveSchedule(ctx context.Context, namespace, name string) (existed bool, err error) {
	field := scheduleField(namespace, name)
	c := &redisconn.Call{Script: removeScheduleScript, Keys: []string{s.keys.schedules()}, Args: []any{field, field + runSuffix}}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return false, fmt.Errorf("remove a schedule: %w", err)
	}
	n, err := c.Cmd.Int()
	return n == 1, err
}

// Schedules reads all schedules in one call.
func (s *Catalog) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	var answer *redis.MapStringStringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { answer = pipe.HGetAll(ctx, s.keys.schedules()) }); err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	var all []catalog.Schedule
	for field, text := range answer.Val() {
		if strings.HasSuffix(field, runSuffix) {
			continue
		}
		schedule, err := readSchedule(text, answer.Val()[field+runSuffix])
		if err != nil {
			return nil, fmt.Errorf("%w: schedule %q: %w", redisconn.ErrDamaged, field, err)
		}
		all = append(all, schedule)
	}
	slices.SortFunc(all, func(a, b catalog.Schedule) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// readSchedule parses a schedule and its last run, which may be "".
func readSchedule(text, run string) (s catalog.Schedule, err error) {
	if err := json.Unmarshal([]byte(text), &s); err != nil || run == "" {
		return s, err
	}
	_, last, _ := strings.Cut(run, " ")
	return s, json.Unmarshal([]byte(last), &s.Last)
}

// RecordRun stores the last run of a schedule.
func (s *Catalog) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	packed, err := json.Marshal(r)
	if err == nil {
		field := scheduleField(namespace, name)
		err = s.conn.RunDurably(ctx, &redisconn.Call{
			Script: recordRunScript, Keys: []string{s.keys.schedules()},
			Args: []any{field, field + runSuffix, r.Slot.Unix(), fmt.Sprintf("%d %s", r.Slot.Unix(), packed)},
		})
	}
	if err != nil {
		return fmt.Errorf("record the run of a schedule: %w", err)
	}
	return nil
}
