package supervise

import (
	"slices"
	"time"
)

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

// Reason is why a process was given up.
type Reason string

// The reasons.
const (
	OutOfRetries Reason = "retries" // every attempt of Policy.Retries failed
	Flapping     Reason = "flapping"
	LimitAgain   Reason = "limit"
	Unstartable  Reason = "setup"
)

// History is what is remembered of a process to tell a loop from bad luck. It
// outlives the agent and not the boot, whose moments it holds.
type History struct {
	Starts     []Moment `json:"starts,omitempty"`      // automatic ones within Policy.FlapWindow
	LimitKills []Moment `json:"limit_kills,omitempty"` // within Policy.LimitWindow
	BadSetups  int      `json:"bad_setups,omitempty"`  // starts in a row that failed by it

	// GaveUp is why the process was given up; "" = it was not. It holds until
	// the process has proven itself or an operation asks for it: a process that
	// dies again before that stays given up.
	GaveUp   Reason `json:"gave_up,omitempty"`
	GaveUpAt Moment `json:"gave_up_at,omitempty"`
	Probes   int    `json:"probes,omitempty"` // attempts since

	// Due is when the next automatic start was to come: an agent that is
	// restarted again and again does not put it off for ever.
	Due Moment `json:"due,omitempty"`
}

// within leaves out what is older than the window.
func within(moments []Moment, now, window Moment) []Moment {
	return slices.DeleteFunc(slices.Clone(moments), func(at Moment) bool { return now-at > window })
}

// forgive forgets everything that counts against the process.
func (m *machine) forgive() { m.Failures, m.History = 0, History{} }

// proven ends a row of failures. What is counted over a time goes on counting:
// a process may run long, and be over its limit in the end every time.
func (m *machine) proven() {
	m.Proven, m.Failures, m.History.BadSetups = true, 0, 0
	if m.History.GaveUp != "" {
		m.forgive()
	}
}

// started counts an automatic start whose command was run.
func (m *machine) started() {
	m.Restarts++
	m.History.Starts = append(within(m.History.Starts, m.now, Moment(m.Policy.FlapWindow)), m.now)
}

// setUp counts in a row the starts that failed since the host is not set up.
func (m *machine) setUp(fault Fault) {
	if fault == BadSetup {
		m.History.BadSetups++
	} else {
		m.History.BadSetups = 0
	}
}

// hopeless is why no further start is worth while, "" if one is.
func (m *machine) hopeless() Reason {
	p, h := m.Policy, &m.History
	reached := func(n, limit int) bool { return limit > 0 && n >= limit }
	switch {
	case h.GaveUp != "":
		return h.GaveUp
	case reached(len(within(h.LimitKills, m.now, Moment(p.LimitWindow))), p.LimitKills):
		return LimitAgain
	case reached(h.BadSetups, p.SetupTries):
		return Unstartable
	case p.exhausted(m.Failures):
		return OutOfRetries
	case reached(len(within(h.Starts, m.now, Moment(p.FlapWindow))), p.FlapStarts):
		return Flapping
	}
	return ""
}

// giveUp leaves a process that is down to rare attempts.
func (m *machine) giveUp(why Reason, last Identity) {
	m.Phase = Fatal
	if m.History.GaveUp == "" {
		m.History.GaveUp, m.History.GaveUpAt, m.History.Probes = why, m.now, 0
		m.emit(Tell{News: GivenUp, Main: last, Reason: why})
	}
	m.probeLater()
}

func (m *machine) probeLater() {
	if m.mayProbe() {
		m.arm(m.Policy.ProbeInterval)
	}
}

// rest is what an earlier agent process has left of a delay.
func (m *machine) rest(delay time.Duration) time.Duration {
	return min(delay, max(0, m.History.Due.since(m.now)))
}

func (m *machine) mayProbe() bool {
	return m.History.Probes < m.Policy.ProbeTries && m.now.since(m.History.GaveUpAt) < m.Policy.ProbeFor
}
