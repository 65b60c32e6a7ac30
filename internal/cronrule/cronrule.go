// Package cronrule parses the times of schedules, maintenance windows and periodic processes.
package cronrule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Parse parses a rule of the five fields minute, hour, day of month, month and day of week. Its times are
// in the time zone of the times that they follow, unless the caller sets Location. A rule that
// matches no time is invalid.
func Parse(rule string) (*cron.SpecSchedule, error) {
	fields := strings.Fields(rule)
	if len(fields) != 5 || strings.Contains(rule, "=") {
		return nil, errors.New("needs the five fields minute, hour, day of month, month and day of week")
	}
	schedule, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, err
	}
	parsed, ok := schedule.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("is of an unknown kind %T", schedule)
	}
	if parsed.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("matches no time: the months have no such day")
	}
	return parsed, nil
}
