package supervise

import "time"

// Policy says how a process is kept alive. Every field means what it says:
// zero is zero.
type Policy struct {
	Resident bool // kept alive; else it is started and left to end
	Periodic bool // started at its ticks (see [Timetable]); never with Resident
	// Retries is how often a dead process is started again before giving up.
	Retries int
	// Interval is the delay of the first retry; each further one doubles it.
	Interval time.Duration
	MaxDelay time.Duration // the doubling stops here
	// StableAfter is how long a process runs until its failures are forgotten.
	StableAfter time.Duration
	// LongRun is how long a process runs until the first failure of a row is
	// followed by a start at once: Interval is for rows of failures.
	LongRun time.Duration
	// RecoverDelay is the least delay right after the agent started, so that
	// a host whose processes all died with it is not flooded.
	RecoverDelay time.Duration

	// FlapStarts automatic starts within FlapWindow mean giving up, even if
	// each of them passed; 0 = no such guard.
	FlapStarts int
	FlapWindow time.Duration
	// SetupTries is how many starts in a row may fail by [BadSetup] before
	// giving up; 0 = no such rule.
	SetupTries int
	// LimitKills take-downs [OverLimit] within LimitWindow mean giving up;
	// 0 = no such rule.
	LimitKills  int
	LimitWindow time.Duration

	// A process that was given up is tried once in ProbeInterval, ProbeTries
	// times and for ProbeFor at most.
	ProbeInterval time.Duration
	ProbeTries    int
	ProbeFor      time.Duration

	// RivalWait is how long the pid file may name another process while the
	// known one lives before that is told.
	RivalWait time.Duration
}

// Delay is the time to wait after so many consecutive failures:
// Interval × 2^(failures−1), at most MaxDelay.
func (p Policy) Delay(failures int) time.Duration {
	delay := p.Interval
	for n := 1; n < failures && delay < p.MaxDelay; n++ {
		delay *= 2
	}
	return min(delay, p.MaxDelay)
}

// exhausted reports whether so many consecutive failures mean giving up.
func (p Policy) exhausted(failures int) bool { return failures > p.Retries }

// Jitter spreads a delay by ±20 %, so that processes that died together do not
// start together. at is a random number in [0, 1).
func Jitter(delay time.Duration, at float64) time.Duration {
	return time.Duration(float64(delay) * (0.8 + 0.4*at))
}
