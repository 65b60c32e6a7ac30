package supervise

import "time"

// Policy configures how a process is kept alive. Zero fields have no defaults.
type Policy struct {
	Resident bool // kept alive; any other process may end
	Periodic bool // started at the ticks of its [Timetable]; never with Resident
	// Retries is the number of consecutive failed automatic starts before giving up.
	Retries int
	// Interval is the delay before the first retry; each further retry doubles the delay.
	Interval time.Duration
	MaxDelay time.Duration // upper bound of the doubled delay
	// StableAfter is the run time after which the failures of a process are reset.
	StableAfter time.Duration
	// LongRun is the run time after which the first failure of a process is followed by an
	// immediate start. Interval applies to repeated failures.
	LongRun time.Duration
	// RecoverDelay is the least delay right after the agent started, so that a host whose
	// processes have all died is not overloaded.
	RecoverDelay time.Duration

	// FlapStarts is the number of automatic starts within FlapWindow that leads to giving
	// up, even if each of them succeeded; 0 = no limit.
	FlapStarts int
	FlapWindow time.Duration
	// SetupTries is the number of consecutive starts failed by [BadSetup] that leads to
	// giving up; 0 = no limit.
	SetupTries int
	// LimitKills is the number of terminations [OverLimit] within LimitWindow that leads to
	// giving up; 0 = no limit.
	LimitKills  int
	LimitWindow time.Duration

	// A process that was given up is started once per ProbeInterval, at most ProbeTries
	// times and until ProbeFor has passed.
	ProbeInterval time.Duration
	ProbeTries    int
	ProbeFor      time.Duration

	// ConflictWait is how long the pid file may name another process, while the known one
	// lives, before an event is emitted.
	ConflictWait time.Duration
}

// Delay returns the delay after the given number of consecutive failures:
// Interval × 2^(failures−1), at most MaxDelay.
func (p Policy) Delay(failures int) time.Duration {
	delay := p.Interval
	for n := 1; n < failures && delay < p.MaxDelay; n++ {
		delay *= 2
	}
	return min(delay, p.MaxDelay)
}

// exhausted reports whether the given number of consecutive failures leads to giving up.
func (p Policy) exhausted(failures int) bool { return failures > p.Retries }

// Jitter spreads a delay by ±20 %, so that processes that died together do not
// start together. at is a random number in [0, 1).
func Jitter(delay time.Duration, at float64) time.Duration {
	return time.Duration(float64(delay) * (0.8 + 0.4*at))
}
