package supervise

import (
	"slices"
	"time"
)

// Policy is how a process is kept alive. It has no defaults: zero means zero.
type Policy struct {
	Resident bool          // kept alive; otherwise it is started and may end
	Periodic bool          // started at its ticks (see [Timetable]); never with Resident
	Retries  int           // consecutive failures tolerated before giving up
	Interval time.Duration // delay of the first retry, doubled by each further one
	MaxDelay time.Duration // upper bound of the doubled delay
	// StableAfter is the uptime after which earlier failures no longer count.
	StableAfter time.Duration
	// LongRun is the uptime after which a first failure is retried without a delay.
	LongRun time.Duration
	// RecoverDelay is the minimum delay of automatic starts right after a start of
	// the agent, so that processes that ended with it are not started all at once.
	RecoverDelay time.Duration

	// FlapStarts automatic starts within FlapWindow lead to giving up, successful
	// ones included; 0 = unlimited.
	FlapStarts int
	FlapWindow time.Duration
	// SetupTries consecutive starts that failed by [BadSetup] lead to giving up;
	// 0 = unlimited.
	SetupTries int
	// LimitKills take-downs by [OverLimit] within LimitWindow lead to giving up;
	// 0 = unlimited.
	LimitKills  int
	LimitWindow time.Duration

	// A process that was given up is started once per ProbeInterval, at most
	// ProbeTries times and for at most ProbeFor.
	ProbeInterval time.Duration
	ProbeTries    int
	ProbeFor      time.Duration

	// RivalWait is how long a conflict with the process in the pid file may last
	// before it is reported.
	RivalWait time.Duration
}

// Delay returns the delay after a number of consecutive failures:
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

// Reason is why a process was given up; a stored word.
type Reason string

// The reasons.
const (
	OutOfRetries Reason = "retries"  // see [Policy.Retries]
	Flapping     Reason = "flapping" // see [Policy.FlapStarts]
	LimitAgain   Reason = "limit"    // see [Policy.LimitKills]
	Unstartable  Reason = "setup"    // see [Policy.SetupTries]
)

// History is the record of failures by which a process is given up. It is stored
// across restarts of the agent and discarded at the next boot.
type History struct {
	Starts     []Moment `json:"starts,omitempty"`      // automatic ones within Policy.FlapWindow
	LimitKills []Moment `json:"limit_kills,omitempty"` // within Policy.LimitWindow
	BadSetups  int      `json:"bad_setups,omitempty"`  // consecutive starts that failed by BadSetup

	// GaveUp is why the process was given up; "" = it was not. It is reset when
	// the process has run for Policy.StableAfter or an operation acts on it.
	GaveUp   Reason `json:"gave_up,omitempty"`
	GaveUpAt Moment `json:"gave_up_at,omitempty"`
	Probes   int    `json:"probes,omitempty"` // automatic starts since GaveUpAt

	// Due is when the next automatic start is due. Repeated restarts of the agent
	// therefore do not postpone it.
	Due Moment `json:"due,omitempty"`
}

// within returns the moments that are not older than the window.
func within(moments []Moment, now, window Moment) []Moment {
	return slices.DeleteFunc(slices.Clone(moments), func(at Moment) bool { return now-at > window })
}

// forgive resets all counted failures.
func (m *machine) forgive() { m.Failures, m.History = 0, History{} }

// becameStable resets the consecutive failures. Counts over a window remain: a
// process may exceed its limit again and again after a long uptime.
func (m *machine) becameStable() {
	m.Proven, m.Failures, m.History.BadSetups = true, 0, 0
	if m.History.GaveUp != "" {
		m.forgive()
	}
}

func (m *machine) countStart() {
	m.Restarts++
	m.History.Starts = append(within(m.History.Starts, m.now, Moment(m.Policy.FlapWindow)), m.now)
}

func (m *machine) countSetup(fault Fault) {
	if fault == BadSetup {
		m.History.BadSetups++
	} else {
		m.History.BadSetups = 0
	}
}

// giveUpReason returns why the process is given up; "" = it is not.
func (m *machine) giveUpReason() Reason {
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

// giveUp ends automatic starts of the process but for rare probes.
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

// remaining returns the part of a delay that has not passed since an earlier agent
// process armed it.
func (m *machine) remaining(delay time.Duration) time.Duration {
	return min(delay, max(0, m.History.Due.since(m.now)))
}

func (m *machine) mayProbe() bool {
	return m.History.Probes < m.Policy.ProbeTries && m.now.since(m.History.GaveUpAt) < m.Policy.ProbeFor
}
