package supervise

import (
	"slices"
	"time"
)

// Reason is why a process was given up.
type Reason string

// The reasons.
const (
	OutOfRetries Reason = "retries" // every attempt of Policy.Retries failed
	Flapping     Reason = "flapping"
	LimitAgain   Reason = "limit"
	Unstartable  Reason = "setup"
)

// History is what is stored of a process to distinguish a loop from single failures. It
// is valid until the host boots again.
type History struct {
	Starts     []Moment `json:"starts,omitempty"`      // automatic ones within Policy.FlapWindow
	LimitKills []Moment `json:"limit_kills,omitempty"` // within Policy.LimitWindow
	BadSetups  int      `json:"bad_setups,omitempty"`  // starts in a row that failed by it

	// GaveUp is why the process was given up; "" = it was not. It stays until the
	// process is proven or an operation starts it: a process that dies again before
	// that stays given up.
	GaveUp   Reason `json:"gave_up,omitempty"`
	GaveUpAt Moment `json:"gave_up_at,omitempty"`
	Probes   int    `json:"probes,omitempty"` // attempts since

	// Due is the time of the next automatic start: repeated restarts of the agent do
	// not postpone it for ever.
	Due Moment `json:"due,omitempty"`
}

// within removes what is older than the window.
func within(moments []Moment, now, window Moment) []Moment {
	return slices.DeleteFunc(slices.Clone(moments), func(at Moment) bool { return now-at > window })
}

// forgive resets all failures of the process.
func (m *machine) forgive() { m.Failures, m.History = 0, History{} }

// proven ends a row of failures. Events within a window still count: a process may run
// long and exceed its limit in the end every time.
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

// setUp counts consecutive starts that failed because the host is not set up.
func (m *machine) setUp(fault Fault) {
	if fault == BadSetup {
		m.History.BadSetups++
	} else {
		m.History.BadSetups = 0
	}
}

// hopeless returns why no further start is useful, "" if one is.
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

// giveUp reduces the starts of a process that is down to rare attempts.
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
