package supervise

import (
	"slices"
	"time"
)

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

// Jitter spreads a delay by ±20 %, so that processes that died together do not
// start together. at is a random number in [0, 1).
func Jitter(delay time.Duration, at float64) time.Duration {
	return time.Duration(float64(delay) * (0.8 + 0.4*at))
}

// Reason is the cause of giving up a process.
type Reason string

// The reasons.
const (
	OutOfRetries Reason = "retries" // every attempt of Policy.Retries failed
	Flapping     Reason = "flapping"
	LimitAgain   Reason = "limit"
	Unstartable  Reason = "setup"
)

// History holds the past starts and failures of a process, which distinguish a crash loop
// from single failures. It is valid until the host reboots.
type History struct {
	Starts     []Moment `json:"starts,omitempty"`      // automatic starts within Policy.FlapWindow
	LimitKills []Moment `json:"limit_kills,omitempty"` // terminations [OverLimit] within Policy.LimitWindow
	BadSetups  int      `json:"bad_setups,omitempty"`  // consecutive starts that failed by [BadSetup]

	// GaveUp is the reason for giving the process up; "" = not given up. It is reset when
	// the process has run for Policy.StableAfter or an operation starts it: a process that
	// dies earlier remains given up.
	GaveUp   Reason `json:"gave_up,omitempty"`
	GaveUpAt Moment `json:"gave_up_at,omitempty"`
	Probes   int    `json:"probes,omitempty"` // start attempts since GaveUpAt

	// Due is the time of the next automatic start. It is stored so that repeated agent
	// restarts do not postpone the start forever.
	Due Moment `json:"due,omitempty"`
}

// within returns the moments that are not older than window.
func within(moments []Moment, now, window Moment) []Moment {
	return slices.DeleteFunc(slices.Clone(moments), func(at Moment) bool { return now-at > window })
}

func (m *machine) forgive() { m.Failures, m.History = 0, History{} }

// proven resets the consecutive failures of a process that has run for Policy.StableAfter.
// Events within a window still count: a process may exceed its limit after each long run.
func (m *machine) proven() {
	m.Proven, m.Failures, m.History.BadSetups = true, 0, 0
	if m.History.GaveUp != "" {
		m.forgive()
	}
}

func (m *machine) started() {
	m.Restarts++
	m.History.Starts = append(within(m.History.Starts, m.now, Moment(m.Policy.FlapWindow)), m.now)
}

// setUp counts consecutive starts that failed because the host is not set up for the process.
func (m *machine) setUp(fault Fault) {
	if fault == BadSetup {
		m.History.BadSetups++
	} else {
		m.History.BadSetups = 0
	}
}

// hopeless returns the reason to give up; "" if another start is useful.
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
	case m.Failures > p.Retries:
		return OutOfRetries
	case reached(len(within(h.Starts, m.now, Moment(p.FlapWindow))), p.FlapStarts):
		return Flapping
	}
	return ""
}

func (m *machine) giveUp(why Reason, last Identity) {
	m.Phase = Fatal
	if m.History.GaveUp == "" {
		m.History.GaveUp, m.History.GaveUpAt, m.History.Probes = why, m.now, 0
		m.emit(Emit{Notice: GivenUp, Main: last, Reason: why})
	}
	m.probeLater()
}

func (m *machine) probeLater() {
	if m.mayProbe() {
		m.arm(m.Policy.ProbeInterval)
	}
}

// remaining returns the remainder of a delay that an earlier agent process began.
func (m *machine) remaining(delay time.Duration) time.Duration {
	return min(delay, max(0, m.History.Due.since(m.now)))
}

func (m *machine) mayProbe() bool {
	return m.History.Probes < m.Policy.ProbeTries && m.now.since(m.History.GaveUpAt) < m.Policy.ProbeFor
}
