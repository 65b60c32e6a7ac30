package catalog_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func TestTheDueTimeOfASchedule(t *testing.T) {
	t.Parallel()
	const nightly, everyMinute = "0 3 * * *", "* * * * *"
	for what, c := range map[string]struct {
		cron, zone       string
		setAt, last, now string // last "" = never
		paused           bool
		want             string // "" = none
	}{
		"before the first time":         {nightly, "", "2026-11-21 03:00:00", "", "2026-11-22 02:59:59", false, ""},
		"at the first time":             {nightly, "", "2026-11-21 03:00:00", "", "2026-11-22 03:00:00", false, "2026-11-22 03:00:00"},
		"handled":                       {nightly, "", "2026-11-21 03:00:00", "2026-11-22 03:00:00", "2026-11-22 09:00:00", false, ""},
		"the last of several":           {nightly, "", "2026-11-01 03:00:00", "2026-11-02 03:00:00", "2026-11-22 09:00:00", false, "2026-11-22 03:00:00"},
		"the last of very many":         {everyMinute, "", "2020-11-01 03:00:00", "", "2026-11-22 09:00:30", false, "2026-11-22 09:00:00"},
		"once a year, two years later":  {"0 3 1 1 *", "", "2024-06-01 00:00:00", "", "2026-12-22 09:00:30", false, "2026-01-01 03:00:00"},
		"in another time zone":          {nightly, "Europe/Berlin", "2026-11-21 03:00:00", "", "2026-11-22 02:00:00", false, "2026-11-22 02:00:00"},
		"paused":                        {nightly, "", "2026-11-21 03:00:00", "", "2026-11-22 03:00:00", true, ""},
		"set after the time":            {nightly, "", "2026-11-22 03:00:01", "", "2026-11-22 04:00:00", false, ""},
		"set again after the last time": {nightly, "", "2026-11-22 03:00:01", "2026-11-21 03:00:00", "2026-11-22 04:00:00", false, ""},
		"the clock stepped back":        {nightly, "", "2026-11-21 03:00:00", "2026-11-22 03:00:00", "2026-11-22 02:00:00", false, ""},
	} {
		s := catalog.Schedule{ScheduleRule: procfleet.ScheduleRule{Cron: c.cron, TimeZone: c.zone, Paused: c.paused}, SetAt: moment(t, c.setAt)}
		if c.last != "" {
			s.Last.Slot = moment(t, c.last)
		}
		var want time.Time
		if c.want != "" {
			want = moment(t, c.want)
		}
		if slot, due := s.Due(moment(t, c.now)); !slot.Equal(want) || !due.Equal(want) {
			t.Errorf("%s: %s, due at %s, want %s", what, slot, due, want)
		}
	}
}

func TestJitterDelaysEachTimeBelowTheNext(t *testing.T) {
	t.Parallel()
	s := catalog.Schedule{Namespace: "2", Name: "a", ScheduleRule: procfleet.ScheduleRule{Cron: "* * * * *", Jitter: procfleet.Duration(time.Hour)}, SetAt: moment(t, "2026-11-21 03:00:00")}
	delays := map[time.Duration]bool{}
	for at := s.SetAt; at.Before(s.SetAt.Add(time.Hour)); at = at.Add(time.Second) {
		slot, due := s.Due(at)
		if slot.IsZero() {
			continue
		}
		if due.Before(slot) || due.Sub(slot) >= time.Minute || due.After(at) || at.Sub(due) >= time.Second {
			t.Fatalf("at %s the time %s is due at %s", at, slot, due)
		}
		delays[due.Sub(slot)] = true
		s.Last.Slot = slot
	}
	if len(delays) < 50 {
		t.Errorf("an hour of minutes has %d different delays", len(delays))
	}
}
