package procfleet

import (
	"slices"
	"time"
)

// Code is the class of a result and the only thing that software may branch
// on. The numbers are those of the published GSE APIs; the set only grows.
type Code int

// The codes.
const (
	CodeSuccess        Code = 0
	CodeRunning        Code = 115 // not final: still under way
	CodeAgentAbnormal  Code = 117 // no agent, or the agent cannot work
	CodeAlreadyRunning Code = 828
	CodeNotRunning     Code = 829
	CodeUnknownAction  Code = 832
	CodeCheckFailed    Code = 836 // the command ran, the process is not as it should be
	CodeRegistered     Code = 850
	CodeFailed         Code = 65535
)

// State is where an item stands.
type State string

// The states of an item. Every state but the first two is final.
const (
	StatePending     State = "pending"   // stored, no agent has it
	StateDelivered   State = "delivered" // an agent accepted it
	StateSucceeded   State = "succeeded"
	StateUnchanged   State = "unchanged" // it already was in the requested state
	StateFailed      State = "failed"
	StateUnreachable State = "unreachable"
	StateTimedOut    State = "timed_out"
	StateCancelled   State = "cancelled"
	StateRejected    State = "rejected"
)

// states are in the order in which an operator wants to read results:
// failures first, then what is still open, then the good news.
var states = []State{
	StateFailed, StateTimedOut, StateUnreachable, StateRejected, StateCancelled,
	StateDelivered, StatePending, StateUnchanged, StateSucceeded,
}

// States returns all states, failures first.
func States() []State { return slices.Clone(states) }

// Final reports whether an item in this state awaits nothing more.
func (s State) Final() bool { return s != StatePending && s != StateDelivered }

// Failure reports whether the item did not get the requested outcome.
func (s State) Failure() bool {
	switch s {
	case StateFailed, StateUnreachable, StateTimedOut, StateCancelled, StateRejected:
		return true
	case StatePending, StateDelivered, StateSucceeded, StateUnchanged:
		return false
	}
	return false
}

// Reason says in one word why an item is in its state.
type Reason string

// The reasons. Pending and delivered items have none.
const (
	ReasonSucceeded      Reason = "succeeded"
	ReasonAlreadyRunning Reason = "already_running"
	ReasonNotRunning     Reason = "not_running"
	ReasonCommandFailed  Reason = "command_failed"
	ReasonCheckFailed    Reason = "check_failed"
	ReasonRefused        Reason = "refused" // expired, superseded, bad command, policy, no journal
	ReasonUnreachable    Reason = "unreachable"
	ReasonTimedOut       Reason = "timed_out"
	ReasonCancelled      Reason = "cancelled"
	ReasonRejected       Reason = "rejected"
)

// State returns the item state that goes with the reason; an unknown reason
// counts as failed.
func (r Reason) State() State {
	switch r {
	case ReasonSucceeded:
		return StateSucceeded
	case ReasonAlreadyRunning, ReasonNotRunning:
		return StateUnchanged
	case ReasonCommandFailed, ReasonCheckFailed, ReasonRefused:
		return StateFailed
	case ReasonUnreachable:
		return StateUnreachable
	case ReasonTimedOut:
		return StateTimedOut
	case ReasonCancelled:
		return StateCancelled
	case ReasonRejected:
		return StateRejected
	}
	return StateFailed
}

// Rank orders results of one item: a higher rank replaces a lower one once,
// an equal or lower rank never does.
type Rank int

// The ranks.
const (
	RankNone   Rank = iota // no final result
	RankServer             // made by the server for want of an agent's word
	RankAgent              // the agent's own
)

// Result is the outcome of one item. The zero Result stands for "none yet".
type Result struct {
	Item   int    `json:"item"`
	Code   Code   `json:"code"`
	Reason Reason `json:"reason,omitempty"`
	Rank   Rank   `json:"rank,omitempty"`
	// Late is set when the result replaced a server-made one.
	Late bool `json:"late,omitempty"`
	// Message is "success" for code 0; else what was wrong, where, and what
	// to do. Valid UTF-8 of at most [MaxMessage] bytes.
	Message  string   `json:"message,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Status is what the agent saw after the action; nil if it did not look.
	Status *ProcessStatus `json:"status,omitempty"`
	// AcceptedAt, StartedAt and FinishedAt are the agent's (or, for a
	// server-made result, only FinishedAt: the server's), corrected to the
	// server's clock as far as the agent knows it.
	AcceptedAt time.Time `json:"accepted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// State is the item state that the result leads to.
func (r *Result) State() State {
	if r.Reason == "" {
		return StatePending
	}
	return r.Reason.State()
}

// Bounds of what an item keeps, in bytes.
const (
	MaxMessage = 4 << 10
	MaxResult  = 16 << 10
)

// ItemResult is an item together with where it stands.
type ItemResult struct {
	Index  int // the item's number in its task
	Item   Item
	Spec   *ProcessSpec // shared by the items of a chunk; read-only
	State  State
	Result Result // zero while State is not final
}
