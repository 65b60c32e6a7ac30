package supervise

import "time"

// Policy says how a process is kept alive. There are no defaults: zero is zero.
type Policy struct {
	Resident bool // kept alive; else it is started and may end
	Periodic bool // started at its ticks (see [Timetable]); never with Resident
	// Retries is the number of starts of a dead process before giving up.
	Retries int
	// Interval is the delay of the first retry; each further one doubles it.
	Interval time.Duration
	MaxDelay time.Duration // the doubling stops here
	// StableAfter is the run of a process after which its failures are reset.
	StableAfter time.Duration
	// LongRun is the run of a process after which its first failure is followed by an
	// immediate start: Interval is for rows of failures.
	LongRun time.Duration
	// RecoverDelay is the least delay right after the agent started, so that a host
	// whose processes all died is not overloaded.
	RecoverDelay time.Duration

	// FlapStarts automatic starts within FlapWindow lead to giving up, even if each of
	// them succeeded; 0 = no such rule.
	FlapStarts int
	FlapWindow time.Duration
	// SetupTries consecutive starts that failed by [BadSetup] lead to giving up; 0 = no
	// such rule.
	SetupTries int
	// LimitKills terminations [OverLimit] within LimitWindow lead to giving up; 0 = no
	// such rule.
	LimitKills  int
	LimitWindow time.Duration

	// A process that was given up is tried once in ProbeInterval, ProbeTries
	// times and for ProbeFor at most.
	ProbeInterval time.Duration
	ProbeTries    int
	ProbeFor      time.Duration

	// ConflictWait is how long the pid file may name another process while the
	// known one lives, before that is reported.
	ConflictWait time.Duration
}

// Delay returns the delay after so many consecutive failures:
// Interval × 2^(failures−1), at most MaxDelay.
func (p Policy) Delay(failures int) time.Duration {
	delay := p.Interval
	for n := 1; n < failures && delay < p.MaxDelay; n++ {
		delay *= 2
	}
	return min(delay, p.MaxDelay)
}

// exhausted reports whether so many consecutive failures lead to giving up.
func (p Policy) exhausted(failures int) bool { return failures > p.Retries }

// Jitter spreads a delay by ±20 %, so that processes that died together do not
// start together. at is a random number in [0, 1).
func Jitter(delay time.Duration, at float64) time.Duration {
	return time.Duration(float64(delay) * (0.8 + 0.4*at))
}
