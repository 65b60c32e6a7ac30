package worker

import (
	"cmp"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// Timing is every length of time that a worker goes by. A zero field is the
// default, which suits production; tests shorten them.
type Timing struct {
	Ask   AskTiming
	Sweep SweepTiming

	// Pull is how long one request for chunks waits at the
	// server; default 3 s. One second more is the longest delay after the
	// server was away, and how late it may hear of a request or its answer come.
	Pull time.Duration
	// PresenceLinger is how long a batch of announcements waits for more after
	// its first; default 20 ms.
	PresenceLinger time.Duration
	// ReportLinger is how long a batch of agents' reports waits for more after
	// its first; default 250 ms.
	ReportLinger time.Duration
	// RetryMin and RetryMax bound the jittered pause while the store or the
	// bus is away; default 50 ms and 3 s. StoreCall bounds one call; default 10 s.
	RetryMin, RetryMax, StoreCall time.Duration
	// ClockSync is the pause between looks at the store's clock; default 10 s.
	ClockSync time.Duration
	// Callback bounds one callback; default 5 s. CallbackFor is how long
	// after its end a task's callback is tried; default 1 h, and never longer
	// than the store knows the task.
	Callback, CallbackFor time.Duration
	// Drain is how long Run finishes what it holds after its context ended;
	// default 10 s.
	Drain time.Duration
}

// AskTiming is how agents are asked to accept commands.
type AskTiming struct {
	// AcceptWindow is how far in the future accept_before lies; default 10 s,
	// which is also the most that agents may be told.
	AcceptWindow time.Duration
	// AcceptMargin is how long after accept_before an answer is still waited
	// for before silence counts as unreachable; default 500 ms.
	AcceptMargin time.Duration
	// Again are the pauses after the first and the second unanswered
	// request; default 2 s and 3 s.
	Again [2]time.Duration
	// NobodyAgain is the pause before the one more try that a host without
	// presence gets; default 1 s.
	NobodyAgain time.Duration
	// RefusedAgain is the pause after a refusal that may pass (expired,
	// another instance), growing with each; default 250 ms.
	RefusedAgain time.Duration
	// Grace is how long a host whose presence is fresh may have nobody
	// listening; default 45 s. ReconnectGrace is the same for every host,
	// counted from this worker's own reconnection; default 30 s. During both
	// the host is asked every GraceAgain; default 2 s.
	Grace, ReconnectGrace, GraceAgain time.Duration
	// StepAside is for how long no host of a chunk has answered when it gives
	// up its place in the lane; default 150 ms. PutOff is how long a chunk
	// that finds no room for its area waits in the queue, longer each time;
	// default 2 s.
	StepAside, PutOff time.Duration
}

// SweepTiming is how open tasks are looked after.
type SweepTiming struct {
	// Round is the pause between rounds; default 1 s. LeaseTTL is the life of
	// a shard's lease and LeaseTerm about how long it is renewed before
	// another worker gets its chance; default 15 s and 1 min.
	Round, LeaseTTL, LeaseTerm time.Duration
	// DispatchAfter is when a task that its dispatcher did not finish
	// publishing is published by the sweep; default 5 s.
	DispatchAfter time.Duration
	// RequeueAfter is the age at which a task's chunks are looked for in the
	// stream; default 5 s.
	RequeueAfter time.Duration
	// ChaseAfter is the age at which a task's delivered items are first looked
	// at for lost results; default 15 s.
	ChaseAfter time.Duration
	// ResendWait bounds one round of asking agents to send results again;
	// default 1 s. LastCall is how long an overdue task waits for what its
	// agents were asked to send; default 3 s. LastCallMax is how long after
	// its deadline a task ends whether or not all agents were asked; default
	// 30 s.
	ResendWait, LastCall, LastCallMax time.Duration
	// RevisitMin and RevisitMax bound the pause between visits to an open
	// task, which grows with its age; default 2 s and 30 s.
	RevisitMin, RevisitMax time.Duration
	// GhostAge is the age at which an entry of the sweep index without a task
	// is removed; younger ones may be about to be written. Default 2 min.
	GhostAge time.Duration
}

// beforeAgentsRepeat bounds the storing of what agents wait for: they are to hear
// that a store hangs before they send everything again, all at the same time.
func (t *Timing) beforeAgentsRepeat() time.Duration {
	return min(t.StoreCall, agentproto.RequestTimeout-time.Second)
}

// maxAcceptWindow keeps a thawed host from doing yesterday's work.
const maxAcceptWindow = 10 * time.Second

func (t Timing) withDefaults() Timing {
	const ms, s = time.Millisecond, time.Second
	return Timing{
		Ask: t.Ask.withDefaults(), Sweep: t.Sweep.withDefaults(),
		Pull:           cmp.Or(t.Pull, 3*s),
		PresenceLinger: cmp.Or(t.PresenceLinger, 20*ms),
		ReportLinger:   cmp.Or(t.ReportLinger, 250*ms),
		RetryMin:       cmp.Or(t.RetryMin, 50*ms),
		RetryMax:       cmp.Or(t.RetryMax, 3*s),
		StoreCall:      cmp.Or(t.StoreCall, 10*s),
		ClockSync:      cmp.Or(t.ClockSync, 10*s),
		Callback:       cmp.Or(t.Callback, 5*s),
		CallbackFor:    cmp.Or(t.CallbackFor, time.Hour),
		Drain:          cmp.Or(t.Drain, 10*s),
	}
}

func (t AskTiming) withDefaults() AskTiming {
	const ms, s = time.Millisecond, time.Second
	return AskTiming{
		AcceptWindow:   cmp.Or(t.AcceptWindow, maxAcceptWindow),
		AcceptMargin:   cmp.Or(t.AcceptMargin, 500*ms),
		Again:          [2]time.Duration{cmp.Or(t.Again[0], 2*s), cmp.Or(t.Again[1], 3*s)},
		NobodyAgain:    cmp.Or(t.NobodyAgain, s),
		RefusedAgain:   cmp.Or(t.RefusedAgain, 250*ms),
		Grace:          cmp.Or(t.Grace, 45*s),
		ReconnectGrace: cmp.Or(t.ReconnectGrace, 30*s),
		GraceAgain:     cmp.Or(t.GraceAgain, 2*s),
		StepAside:      cmp.Or(t.StepAside, 150*ms),
		PutOff:         cmp.Or(t.PutOff, 2*s),
	}
}

func (t SweepTiming) withDefaults() SweepTiming {
	const s = time.Second
	return SweepTiming{
		Round:         cmp.Or(t.Round, s),
		LeaseTTL:      cmp.Or(t.LeaseTTL, 15*s),
		LeaseTerm:     cmp.Or(t.LeaseTerm, time.Minute),
		DispatchAfter: cmp.Or(t.DispatchAfter, 5*s),
		RequeueAfter:  cmp.Or(t.RequeueAfter, 5*s),
		ChaseAfter:    cmp.Or(t.ChaseAfter, 15*s),
		ResendWait:    cmp.Or(t.ResendWait, s),
		LastCall:      cmp.Or(t.LastCall, 3*s),
		LastCallMax:   cmp.Or(t.LastCallMax, 30*s),
		RevisitMin:    cmp.Or(t.RevisitMin, 2*s),
		RevisitMax:    cmp.Or(t.RevisitMax, 30*s),
		GhostAge:      cmp.Or(t.GhostAge, 2*time.Minute),
	}
}
