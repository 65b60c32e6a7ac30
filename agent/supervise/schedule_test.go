package supervise

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // embeds the zones, which a system may lack

	"pgregory.net/rapid"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// at parses a wall clock time; an ambiguous one needs the zone offset.
func at(t *testing.T, text string, loc *time.Location) time.Time {
	t.Helper()
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02 15:04 -0700"} {
		if got, err := time.ParseInLocation(layout, text, loc); err == nil {
			return got.In(loc)
		}
	}
	t.Fatalf("%q is no time", text)
	return time.Time{}
}

func crontab(t *testing.T, rule string) Timetable {
	t.Helper()
	table, err := Crontab(rule)
	if err != nil {
		t.Fatalf("%q: %v", rule, err)
	}
	return table
}

func testCrontabFollowsTheWallClock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule, zone, from string
		want                   []string
	}{
		{"every minute", "* * * * *", "UTC", "2026-01-31 23:58:30", []string{"2026-01-31 23:59", "2026-02-01 00:00", "2026-02-01 00:01"}},
		{"after, not at", "5 * * * *", "UTC", "2026-01-01 10:05", []string{"2026-01-01 11:05"}},
		{"steps and lists", "*/20 8,10 * * *", "UTC", "2026-01-01 08:30", []string{"2026-01-01 08:40", "2026-01-01 10:00", "2026-01-01 10:20", "2026-01-01 10:40", "2026-01-02 08:00"}},
		{"names of months and days", "0 0 * feb mon", "UTC", "2026-01-01 00:00", []string{"2026-02-02 00:00", "2026-02-09 00:00"}},
		{"either day where both are named", "0 0 13 * fri", "UTC", "2026-02-01 00:00", []string{"2026-02-06 00:00", "2026-02-13 00:00", "2026-02-20 00:00", "2026-02-27 00:00", "2026-03-06 00:00", "2026-03-13 00:00"}},
		{"leap day", "30 12 29 2 *", "UTC", "2026-01-01 00:00", []string{"2028-02-29 12:30", "2032-02-29 12:30"}},
		{"leap day after a century without", "30 12 29 2 *", "UTC", "2096-03-01 00:00", []string{"2104-02-29 12:30"}},
		{"half an hour off", "15 9 * * *", "Asia/Kolkata", "2026-01-01 09:00", []string{"2026-01-01 09:15", "2026-01-02 09:15"}},
		{"day after 23 hours", "0 4 * * *", "Europe/Berlin", "2026-03-28 05:00", []string{"2026-03-29 04:00", "2026-03-30 04:00"}},
		{"minutes that are skipped in spring", "30 2 * * *", "Europe/Berlin", "2026-03-28 00:00", []string{"2026-03-28 02:30", "2026-03-30 02:30"}},
		{"minutes that come twice in autumn", "30 2 * * *", "Europe/Berlin", "2026-10-24 00:00", []string{"2026-10-24 02:30", "2026-10-25 02:30 +0200", "2026-10-26 02:30"}},
		{"every half hour in autumn", "*/30 * * * *", "Europe/Berlin", "2026-10-25 01:40", []string{"2026-10-25 02:00 +0200", "2026-10-25 02:30 +0200", "2026-10-25 03:00 +0100"}},
		{"half an hour comes twice", "*/15 1-2 * * *", "Australia/Lord_Howe", "2026-04-05 01:20", []string{"2026-04-05 01:30 +1100", "2026-04-05 01:45 +1100", "2026-04-05 02:00 +1030"}},
		{"midnight is skipped", "0 0 * * *", "America/Santiago", "2026-09-05 12:00", []string{"2026-09-07 00:00"}},
		{"the first minute of a day without midnight", "0 1 * * *", "America/Santiago", "2026-09-05 12:00", []string{"2026-09-06 01:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			loc := zone(t, c.zone)
			table, now := crontab(t, c.rule), at(t, c.from, loc)
			for _, want := range c.want {
				if now = table.Next(now); !now.Equal(at(t, want, loc)) {
					t.Fatalf("next is %s, want %s", now, want)
				}
			}
		})
	}
}

func TestBadCrontabIsRefused(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"":                       "five fields",
		"* * * *":                "five fields",
		"0 * * * * *":            "five fields",
		"@daily":                 "five fields",
		"@every 5m":              "five fields",
		"TZ=UTC\t* * * *":        "five fields",
		"TZ=Mars * * * * *":      "five fields",
		"60 * * * *":             "60",
		"* 24 * * *":             "24",
		"* * 0 * *":              "0",
		"* * * 13 *":             "13",
		"* * * * 8":              "8",
		"a * * * *":              "a",
		"5-1 * * * *":            "5-1",
		"*/0 * * * *":            "*/0",
		"0 0 30 2 *":             "matches no time",
		"0 0 31 4,6,9,11 *":      "matches no time",
		strings.Repeat("* ", 50): "five fields",
	} {
		if _, err := Crontab(rule); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", rule, err, want)
		}
	}
}

func TestShortCycleBeginsAtMostOneCycleLate(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, every := range []time.Duration{time.Second, 2 * time.Second, 30 * time.Second, time.Hour} {
		limit := min(every, 30*time.Second)
		var most time.Duration
		for n := range 1000 {
			key := fmt.Sprintf("shop:job_%d", n)
			first := Cycle(every, begin, key).Next(begin)
			late := first.Sub(begin.Add(every))
			if late < 0 || late >= limit {
				t.Fatalf("cycle of %s of %s begins %s late, want less than %s", every, key, late, limit)
			}
			if again := Cycle(every, begin, key).Next(begin); !again.Equal(first) {
				t.Fatalf("cycle of %s of %s begins at %s and at %s", every, key, first, again)
			}
			most = max(most, late)
		}
		if most < limit*9/10 {
			t.Errorf("cycles of %s begin at most %s late: they are not spread over %s", every, most, limit)
		}
	}
}

func TestCycleHasAFixedRate(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, every := range []time.Duration{time.Second, time.Minute, 24 * time.Hour, 365 * 24 * time.Hour} {
		table := Cycle(every, begin, "/srv/job")
		first := table.Next(begin)
		if spread := first.Sub(begin.Add(every)); spread < 0 || spread >= min(every, 30*time.Second) {
			t.Errorf("cycle of %s begins %s late", every, spread)
		}
		if got := table.Next(begin.Add(-time.Hour)); !got.Equal(first) {
			t.Errorf("cycle of %s: the first tick is %s and %s", every, first, got)
		}
		if got := table.Next(first); !got.Equal(first.Add(every)) {
			t.Errorf("cycle of %s: %s follows %s", every, got, first)
		}
		if got := table.Next(first.Add(7*every + every/2)); !got.Equal(first.Add(8 * every)) {
			t.Errorf("cycle of %s has lost its rate: %s after %s", every, got, first)
		}
	}
	if a, b := Cycle(time.Hour, begin, "a"), Cycle(time.Hour, begin, "b"); a.Next(begin).Equal(b.Next(begin)) {
		t.Error("two keys run at the same moment")
	}
}

func testMissedTicksAreServedOnceAndSoonOrNever(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cycle := Cycle(time.Hour, begin, "job")
	first := cycle.Next(begin)
	hour := func(n float64) time.Time { return first.Add(time.Duration(n * float64(time.Hour))) }
	daily, minutely := crontab(t, "0 3 * * *"), crontab(t, "* * * * *")
	day := func(text string) time.Time { return at(t, text, time.UTC) }
	for _, c := range []struct {
		name        string
		table       Timetable
		served, now time.Time
		due         time.Time // zero = no tick is due
	}{
		{"not yet", cycle, begin, hour(-0.01), time.Time{}},
		{"in time", cycle, begin, hour(0), hour(0)},
		{"served already", cycle, hour(0), hour(0.05), time.Time{}},
		{"a little late", cycle, hour(0), hour(1.1), hour(1)},
		{"too late", cycle, hour(0), hour(1.11), time.Time{}},
		{"the last of five that were missed", cycle, hour(0), hour(5.02), hour(5)},
		{"five were missed, and the last is long ago", cycle, hour(0), hour(5.5), time.Time{}},
		{"the clock was a little ahead before", cycle, hour(1), hour(1).Add(-time.Second), time.Time{}},
		{"the clock was years ahead before", cycle, hour(9000), hour(2.01), hour(2)},
		{"by crontab in time", daily, day("2026-05-01 03:00"), day("2026-05-02 03:00:04"), day("2026-05-02 03:00")},
		{"by crontab within an hour", daily, day("2026-05-01 03:00"), day("2026-05-02 03:59"), day("2026-05-02 03:00")},
		{"by crontab after more than an hour", daily, day("2026-05-01 03:00"), day("2026-05-02 04:01"), time.Time{}},
		{"every minute, in time", minutely, day("2026-05-01 03:00"), day("2026-05-01 03:01:05"), day("2026-05-01 03:01")},
		{"every minute, too late", minutely, day("2026-05-01 03:00"), day("2026-05-01 03:01:07"), time.Time{}},
		{"the last of an hour of minutes", minutely, day("2026-05-01 03:00"), day("2026-05-01 04:01:01"), day("2026-05-01 04:01")},
		{"the clock was put back an hour: the same minute is not served again", daily, day("2026-05-02 03:00"), day("2026-05-02 03:00:30"), time.Time{}},
		{"the clock was put back an hour: not again before it is where it was", minutely, day("2026-05-01 04:00"), day("2026-05-01 03:00:01"), time.Time{}},
		{"the clock was put right by years", minutely, day("2036-05-01 04:00"), day("2026-05-01 03:00:01"), day("2026-05-01 03:00")},
		{"the clock fell to 1970", minutely, day("2026-05-01 04:00"), day("1970-01-01 00:01:01"), day("1970-01-01 00:01")},
		{"no timetable", Timetable{}, begin, hour(1), time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.table.Due(c.served, c.now); !got.Equal(c.due) {
				t.Errorf("due is %s, want %s", got, c.due)
			}
		})
	}
}

// testNoTickIsServedTwice advances the time by random steps and serves what is due. The wall
// clock is sometimes set back by less than clockMend; the clock of cycles is never set.
func testNoTickIsServedTwice(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tables := map[string]Timetable{
		"cycle": Cycle(10*time.Minute, begin, "job"), "minutely": crontab(t, "* * * * *"), "hourly": crontab(t, "0 * * * *"),
	}
	rapid.Check(t, func(t *rapid.T) {
		table := tables[rapid.SampledFrom([]string{"cycle", "minutely", "hourly"}).Draw(t, "table")]
		putBack := clockMend
		if !table.ByWallClock() {
			putBack = 0
		}
		now, served, latest := begin, begin, begin
		steps := rapid.SliceOfN(rapid.Int64Range(-int64(time.Hour), int64(5*time.Hour)), 1, 50).Draw(t, "steps")
		for _, step := range steps {
			if now = now.Add(time.Duration(step)); now.Before(latest.Add(-putBack)) {
				now = latest.Add(-putBack)
			}
			if now.After(latest) {
				latest = now
			}
			tick := table.Due(served, now)
			if tick.IsZero() {
				continue
			}
			if !tick.After(served) || tick.After(now) {
				t.Fatalf("tick %s is served at %s, after %s", tick, now, served)
			}
			if served = tick; !table.Due(served, now).IsZero() {
				t.Fatalf("tick %s is due again", tick)
			}
			if next := table.Next(now); !next.After(now) {
				t.Fatalf("next after %s is %s", now, next)
			}
		}
	})
}

func FuzzCrontab(f *testing.F) {
	for _, rule := range []string{"* * * * *", "*/5 1-3 1,15 jan mon", "TZ=", "@daily", "0 0 31 2 *", "? * * * ?"} {
		f.Add(rule)
	}
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, rule string) {
		table, err := Crontab(rule)
		if err != nil {
			return
		}
		if next := table.Next(from); !next.After(from) || next.Second() != 0 {
			t.Errorf("%q: next is %s", rule, next)
		}
	})
}
