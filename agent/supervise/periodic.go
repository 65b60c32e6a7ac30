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
	// maxSpread bounds the offset of a cycle, by which processes that were
	// registered together do not run together.
	maxSpread = 30 * time.Second

	// 1/graceShare of a period is how late a tick may still be served.
	graceShare = 10
	minGrace   = time.Second
	maxGrace   = time.Hour // by a crontab, whose periods may be years

	// clockMend is the smallest step of the clock backwards after which the ticks
	// of a crontab repeat. After a smaller step they wait until the clock has
	// caught up.
	clockMend = 3 * time.Hour

	// farthest is how far ahead the next tick of a crontab is searched: 29 February
	// can be eight years away, around a century that is no leap year.
	farthest = 9 * 366 * 24 * time.Hour
)

// Timetable is the times, called ticks, at which a periodic process is run. The
// zero Timetable has none. Make it with [Cycle] or [Crontab].
type Timetable struct {
	every time.Duration
	first time.Time // of every

	rule *cron.SpecSchedule
}

// Cycle returns a timetable with one tick per period after begin, shifted by an
// offset of at most 30 s that is derived from key. Its times are those of a clock
// that is never set. every must be positive.
func Cycle(every time.Duration, begin time.Time, key string) Timetable {
	h := fnv.New32a()
	h.Write([]byte(key))
	spread := time.Duration(h.Sum32()) * time.Millisecond % min(every, maxSpread)
	return Timetable{every: every, first: begin.Add(every + spread)}
}

// Crontab returns a timetable with ticks at the minutes that a rule of five fields
// matches, in the time zone of the times passed to its methods. A minute that the
// wall clock repeats at the end of summer time has one tick, a skipped one none.
func Crontab(rule string) (Timetable, error) {
	fields := strings.Fields(rule)
	if len(fields) != 5 || strings.Contains(rule, "=") {
		return Timetable{}, errors.New("does not have the five fields minute, hour, day of month, month and day of week")
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
		return Timetable{}, errors.New("has no tick: no such day is in these months")
	}
	return t, nil
}

// IsZero reports whether the timetable has no ticks.
func (t Timetable) IsZero() bool { return t.every == 0 && t.rule == nil }

// ByWallClock reports whether ticks are times of the wall clock; otherwise they
// are times of a clock that is never set.
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

// last returns the latest tick of a cycle up to now. now must not be before first.
func (t Timetable) last(now time.Time) time.Time {
	return t.first.Add(now.Sub(t.first).Truncate(t.every))
}

// Due returns the tick to serve now, or zero; served is the latest tick that was
// served. Of missed ticks only the last is due, and only for a tenth of the time
// until the next one.
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

// since returns the time after which a tick counts: served, unless it lies ahead
// because the clock was set back.
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

// nextMatch returns the first matching minute after a time. It skips days and
// hours that do not match.
func (t Timetable) nextMatch(after time.Time) time.Time {
	at := after.Truncate(time.Minute).Add(time.Minute)
	for limit := after.Add(farthest); at.Before(limit); {
		switch {
		case !t.matchesDay(at):
			at = later(at, time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, at.Location()))
		case t.rule.Hour&(1<<at.Hour()) == 0:
			at = at.Add(time.Duration(60-at.Minute()) * time.Minute)
		case t.rule.Minute&(1<<at.Minute()) == 0, isRepeated(at):
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

// later returns next, or a minute after at where a change of the clock around
// midnight makes next not later.
func later(at, next time.Time) time.Time {
	if next.After(at) {
		return next
	}
	return at.Add(time.Minute)
}

// anyDay is set in a field of days that says "*".
const anyDay = 1 << 63

// matchesDay matches like crontabs: if both fields name days, one of them has to
// match.
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

// isRepeated reports whether the wall clock has shown this minute before, because
// it was set back at the end of summer time.
func isRepeated(at time.Time) bool {
	begin, _ := at.ZoneBounds()
	if begin.IsZero() {
		return false
	}
	_, offset := at.Zone()
	_, before := begin.Add(-time.Second).Zone()
	return at.Sub(begin) < time.Duration(before-offset)*time.Second
}

// maxOverlaps is the number of consecutive skipped runs that is reported.
const maxOverlaps = 3

// registers reports whether a process is supervised once it was started.
func (p Policy) registers() bool { return p.Resident || p.Periodic }

// Ticks reports whether a tick can be served now. Otherwise it remains due, see
// [Timetable.Due].
func (s State) Ticks(now Moment) bool {
	return s.supervised() && s.Policy.Periodic && !s.Held && !s.recovering && now >= s.notBefore &&
		(s.Work == Idle && s.Phase != Uncertain && s.Phase != Exited || s.Work == AutoStarting)
}

// awaitsTick reports whether a periodic process waits for its next tick. It need
// not be observed before: the tick does.
func (s State) awaitsTick() bool {
	return s.Policy.Periodic && s.Phase == Stopped && !s.recovering
}

// ticked begins a run, unless the one before has not ended.
func (m *machine) ticked() {
	if !m.Ticks(m.now) {
		return
	}
	if m.Work == AutoStarting || m.Phase == Running {
		m.overlap()
		return
	}
	m.Overlaps = 0
	m.begin(AutoStarting)
	m.Phase = Starting
	m.emit(AutoStart{})
}

// overlap skips a run.
func (m *machine) overlap() {
	m.Overlaps++
	if m.Overlaps == maxOverlaps {
		m.emit(Tell{News: Overlapping, Main: m.Main})
	}
}

// await waits for the next tick. Only a failed start counts as a failure, the end
// of a run does not.
func (m *machine) await(failed bool) {
	m.Phase = Stopped
	if !failed {
		m.Failures = 0
		return
	}
	m.Failures++
	if m.Failures == max(1, m.Policy.Retries) {
		m.emit(Tell{News: RunsFailed})
	}
}
