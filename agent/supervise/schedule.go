package supervise

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	// maxSpread bounds how far the first tick of a cycle is put off, so that
	// processes that were registered together do not run together.
	maxSpread = 30 * time.Second

	// graceShare of a period is how late a tick may still be served.
	graceShare = 10
	minGrace   = time.Second
	maxGrace   = time.Hour // by a crontab, whose periods may be years

	// clockMend is the least correction of the clock backwards after which
	// ticks by a crontab come again. After a smaller one they wait until the
	// clock is where it was.
	clockMend = 3 * time.Hour

	// farthest is how far ahead a crontab's next tick is looked for: it covers
	// 29 February around a year that is no leap year for being a century.
	farthest = 9 * 366 * 24 * time.Hour
)

// Timetable says when a periodic process is run: at its ticks. The zero
// Timetable has none. Make it with [Cycle] or [Crontab].
type Timetable struct {
	every time.Duration
	first time.Time // of every

	rule *cron.SpecSchedule
}

// Cycle has a tick every so often after its beginning, and a bit later for
// each of them by what key comes to: at most 30 s. Its times are those of a
// clock that nobody sets. every must be positive.
func Cycle(every time.Duration, begin time.Time, key string) Timetable {
	h := fnv.New32a()
	h.Write([]byte(key))
	spread := time.Duration(h.Sum32()) * time.Millisecond % min(every, maxSpread)
	return Timetable{every: every, first: begin.Add(every + spread)}
}

// Crontab has ticks at the minutes that a rule of five fields matches, in the
// time zone of the times it is asked about: once in each minute of the wall
// clock, also when the hour comes twice as summer ends. What the clock skips
// has no tick.
func Crontab(rule string) (Timetable, error) {
	fields := strings.Fields(rule)
	if len(fields) != 5 || strings.Contains(rule, "=") {
		return Timetable{}, errors.New("has not the five fields minute, hour, day of month, month and day of week")
	}
	parser := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	schedule, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return Timetable{}, err
	}
	parsed, ok := schedule.(*cron.SpecSchedule)
	if !ok {
		return Timetable{}, fmt.Errorf("is of an unknown kind %T", schedule)
	}
	t := Timetable{rule: parsed}
	if t.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Timetable{}, errors.New("never comes: no such day is in these months")
	}
	return t, nil
}

// IsZero reports whether there are no ticks at all.
func (t Timetable) IsZero() bool { return t.every == 0 && t.rule == nil }

// ByWallClock reports whether ticks are meant by the clock on the wall; else
// by one that nobody sets.
func (t Timetable) ByWallClock() bool { return t.rule != nil }

// Next is the first tick after a time; zero if there is none.
func (t Timetable) Next(after time.Time) time.Time {
	switch {
	case t.rule != nil:
		return t.nextMatch(after)
	case t.every == 0:
		return time.Time{}
	case after.Before(t.first):
		return t.first
	}
	return t.last(after).Add(t.every)
}

// last is the latest tick of a cycle up to now, which is not before the first.
func (t Timetable) last(now time.Time) time.Time {
	return t.first.Add(now.Sub(t.first).Truncate(t.every))
}

// Due is the tick to serve now; zero if there is none. served is the latest
// one that was. Of ticks that were missed only the last can be due, and only
// for a tenth of the time until the next one.
func (t Timetable) Due(served, now time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	tick := t.latest(t.since(served, now), now)
	if tick.IsZero() || now.Sub(tick) > t.grace(tick) {
		return time.Time{}
	}
	return tick
}

// since is the time after which a tick counts. One that lies ahead comes from
// a clock that was set back.
func (t Timetable) since(served, now time.Time) time.Time {
	ahead, tolerated := served.Sub(now), t.every
	if t.rule != nil {
		tolerated = clockMend
	}
	if ahead > tolerated {
		return now.Add(-time.Minute)
	}
	return served.In(now.Location())
}

// latest is the last tick after served up to now; zero if there is none.
func (t Timetable) latest(served, now time.Time) (tick time.Time) {
	if t.rule == nil {
		if now.Before(t.first) || !t.last(now).After(served) {
			return time.Time{}
		}
		return t.last(now)
	}
	from := now.Add(-maxGrace)
	if served.After(from) {
		from = served
	}
	for next := t.Next(from); !next.IsZero() && !next.After(now); next = t.Next(next) {
		tick = next
	}
	return tick
}

// grace is how late a tick may be served.
func (t Timetable) grace(tick time.Time) time.Duration {
	return min(maxGrace, max(minGrace, t.Next(tick).Sub(tick)/graceShare))
}

// nextMatch goes through months, days, hours and minutes as the clock shows
// them, and leaves out quickly what does not match.
func (t Timetable) nextMatch(after time.Time) time.Time {
	at := after.Truncate(time.Minute).Add(time.Minute)
	for limit := after.Add(farthest); at.Before(limit); {
		switch {
		case !t.matchesDay(at):
			at = later(at, time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, at.Location()))
		case t.rule.Hour&(1<<at.Hour()) == 0:
			at = at.Add(time.Duration(60-at.Minute()) * time.Minute)
		case t.rule.Minute&(1<<at.Minute()) == 0, comesAgain(at):
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

// later is next, or a minute after at where the clock was moved around
// midnight and next is not ahead.
func later(at, next time.Time) time.Time {
	if next.After(at) {
		return next
	}
	return at.Add(time.Minute)
}

// anyDay is set in a field of days that says "*".
const anyDay = 1 << 63

// matchesDay follows crontabs: where both fields name days, either will do.
func (t Timetable) matchesDay(at time.Time) bool {
	r := t.rule
	byMonth, byWeek := r.Dom&(1<<at.Day()) != 0, r.Dow&(1<<at.Weekday()) != 0
	switch {
	case r.Month&(1<<at.Month()) == 0:
		return false
	case r.Dom&anyDay != 0, r.Dow&anyDay != 0:
		return byMonth && byWeek
	}
	return byMonth || byWeek
}

// comesAgain reports whether the clock on the wall has shown this minute
// before, since it was put back.
func comesAgain(at time.Time) bool {
	begin, _ := at.ZoneBounds()
	if begin.IsZero() {
		return false
	}
	_, offset := at.Zone()
	_, before := begin.Add(-time.Second).Zone()
	return at.Sub(begin) < time.Duration(before-offset)*time.Second
}
