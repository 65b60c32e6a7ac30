package supervise

import (
	"slices"
	"time"
)

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

// forgive resets all failures of the process.
func (m *machine) forgive() { m.Failures, m.History = 0, History{} }

// proven resets the consecutive failures of a process that has run for Policy.StableAfter.
// Events within a window still count: a process may exceed its limit after each long run.
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
	case p.exhausted(m.Failures):
		return OutOfRetries
	case reached(len(within(h.Starts, m.now, Moment(p.FlapWindow))), p.FlapStarts):
		return Flapping
	}
	return ""
}

// giveUp gives up a process that is down and schedules the rare attempts to start it.
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

// rest returns the remainder of a delay that an earlier agent process began.
func (m *machine) rest(delay time.Duration) time.Duration {
	return min(delay, max(0, m.History.Due.since(m.now)))
}

func (m *machine) mayProbe() bool {
	return m.History.Probes < m.Policy.ProbeTries && m.now.since(m.History.GaveUpAt) < m.Policy.ProbeFor
}
