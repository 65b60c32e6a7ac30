package supervise

import (
	"hash/fnv"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/procfleet/procfleet/internal/cronrule"
)

const (
	// maxSpread bounds the additional delay of a cycle's ticks, so that processes that were
	// registered together do not run together. The delay is less than the cycle, too.
	maxSpread = 30 * time.Second

	// A tick may be served late by 1/graceShare of the time to the next tick, within
	// minGrace and maxGrace.
	graceShare = 10
	minGrace   = time.Second
	maxGrace   = time.Hour // also bounds the search for missed crontab ticks

	// clockMend is the limit above which a backward correction of the clock makes crontab
	// ticks that were already served due a second time. After a smaller correction, ticks
	// are skipped until the clock has passed the latest served one.
	clockMend = 3 * time.Hour

	// farthest bounds the search for the next tick of a crontab. It covers 29 February
	// around a year such as 2100, which is no leap year.
	farthest = 9 * 366 * 24 * time.Hour
)

// Timetable defines the ticks of a periodic process: the times at which it is run. The
// zero Timetable has none. Create it with [Cycle] or [Crontab].
type Timetable struct {
	every time.Duration
	first time.Time // first tick of a cycle

	rule *cron.SpecSchedule
}

// Cycle returns a timetable with a tick at begin + n × every, delayed by an offset that is
// derived from key and less than every and 30 s. Its times belong to a clock that is never
// set. every must be positive.
func Cycle(every time.Duration, begin time.Time, key string) Timetable {
	h := fnv.New32a()
	h.Write([]byte(key))
	spread := time.Duration(h.Sum32()) * time.Millisecond % min(every, maxSpread)
	return Timetable{every: every, first: begin.Add(every + spread)}
}

// Crontab returns a timetable with ticks at the minutes that a rule of five fields matches,
// in the time zone of the times passed to its methods. A minute that the wall clock shows
// twice, when daylight saving time ends, has one tick; a minute that it skips has none.
func Crontab(rule string) (Timetable, error) {
	parsed, err := cronrule.Parse(rule)
	if err != nil {
		return Timetable{}, err
	}
	return Timetable{rule: parsed}, nil
}

// IsZero reports whether the timetable has no ticks.
func (t Timetable) IsZero() bool { return t.every == 0 && t.rule == nil }

// ByWallClock reports whether the ticks are wall clock times (a crontab), rather than times
// of a clock that is never set (a cycle).
func (t Timetable) ByWallClock() bool { return t.rule != nil }

// Next returns the first tick after a time; zero if there is none.
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

// last returns the latest tick of a cycle up to now. now must not be before t.first.
func (t Timetable) last(now time.Time) time.Time {
	return t.first.Add(now.Sub(t.first).Truncate(t.every))
}

// Due returns the tick to serve now; zero if there is none. served is the latest served
// tick. Of several missed ticks only the last one can be due, and only within its grace
// period.
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

// since returns the time after which a tick counts: served, unless it lies so far in the
// future that the clock must have been set back.
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

// latest returns the last tick after served up to now; zero if there is none.
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

// grace returns how late a tick may be served.
func (t Timetable) grace(tick time.Time) time.Duration {
	return min(maxGrace, max(minGrace, t.Next(tick).Sub(tick)/graceShare))
}

// nextMatch returns the first matching minute after a time; zero if there is none within
// farthest. It skips whole days and hours that do not match.
func (t Timetable) nextMatch(after time.Time) time.Time {
	at := after.Truncate(time.Minute).Add(time.Minute)
	for limit := after.Add(farthest); at.Before(limit); {
		switch {
		case !t.matchesDay(at):
			at = later(at, time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, at.Location()))
		case t.rule.Hour&(1<<at.Hour()) == 0:
			at = at.Add(time.Duration(60-at.Minute()) * time.Minute)
		case t.rule.Minute&(1<<at.Minute()) == 0, repeated(at):
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

// later returns next, or one minute after at if next is not later, because the clock was set
// around midnight.
func later(at, next time.Time) time.Time {
	if next.After(at) {
		return next
	}
	return at.Add(time.Minute)
}

// anyDay is the bit that is set in a day field written as "*".
const anyDay = 1 << 63

// matchesDay reports whether the rule matches a day. If both day fields name days, one of
// them has to match, as in crontab(5).
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

// repeated reports whether the wall clock shows this minute for the second time, because
// it was set back.
func repeated(at time.Time) bool {
	begin, _ := at.ZoneBounds()
	if begin.IsZero() {
		return false
	}
	_, offset := at.Zone()
	_, before := begin.Add(-time.Second).Zone()
	return at.Sub(begin) < time.Duration(before-offset)*time.Second
}
