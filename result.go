package procfleet

import (
	"slices"
	"time"
)

// Code is the class of a result; software must branch on it alone. The numbers
// are those of the published GSE APIs, and codes are never removed.
type Code int

// Values of [Code].
const (
	CodeSuccess        Code = 0
	CodeRunning        Code = 115 // not final: in progress
	CodeAgentAbnormal  Code = 117 // no agent, or the agent is defective
	CodeAlreadyRunning Code = 828
	CodeNotRunning     Code = 829
	CodeUnknownAction  Code = 832
	CodeCheckFailed    Code = 836 // the command ran, but the process is not in the requested state
	CodeRegistered     Code = 850
	CodeFailed         Code = 65535
)

// State is the state of an item.
type State string

// Values of [State]; all except the first two are final.
const (
	StatePending     State = "pending"   // stored, not yet accepted by an agent
	StateDelivered   State = "delivered" // accepted by an agent
	StateSucceeded   State = "succeeded"
	StateUnchanged   State = "unchanged" // the process already was in the requested state
	StateFailed      State = "failed"
	StateUnreachable State = "unreachable"
	StateTimedOut    State = "timed_out"
	StateCancelled   State = "cancelled"
	StateRejected    State = "rejected"
)

// states lists the states in display order: failures, open items, successes.
var states = []State{
	StateFailed, StateTimedOut, StateUnreachable, StateRejected, StateCancelled,
	StateDelivered, StatePending, StateUnchanged, StateSucceeded,
}

// States returns all states, failures first.
func States() []State { return slices.Clone(states) }

// Final reports whether s is a final state.
func (s State) Final() bool { return s != StatePending && s != StateDelivered }

// Failure reports whether s is final and the request was not fulfilled.
func (s State) Failure() bool {
	switch s {
	case StateFailed, StateUnreachable, StateTimedOut, StateCancelled, StateRejected:
		return true
	default:
		return false
	}
}

// Reason is one word for the cause of an item's state.
type Reason string

// Values of [Reason]. Pending and delivered items have no reason.
const (
	ReasonSucceeded      Reason = "succeeded"
	ReasonAlreadyRunning Reason = "already_running"
	ReasonNotRunning     Reason = "not_running"
	ReasonCommandFailed  Reason = "command_failed"
	ReasonCheckFailed    Reason = "check_failed"
	ReasonRefused        Reason = "refused" // refused by the agent: expired, superseded, bad command, policy, no journal
	ReasonUnreachable    Reason = "unreachable"
	ReasonTimedOut       Reason = "timed_out"
	ReasonCancelled      Reason = "cancelled"
	ReasonRejected       Reason = "rejected"
)

// State returns the item state that r leads to; StateFailed for unknown reasons.
func (r Reason) State() State {
	switch r {
	case ReasonSucceeded:
		return StateSucceeded
	case ReasonAlreadyRunning, ReasonNotRunning:
		return StateUnchanged
	case ReasonUnreachable:
		return StateUnreachable
	case ReasonTimedOut:
		return StateTimedOut
	case ReasonCancelled:
		return StateCancelled
	case ReasonRejected:
		return StateRejected
	default: // command_failed, check_failed, refused
		return StateFailed
	}
}

// Refusal says why an operation was not begun, as far as callers must tell it apart.
type Refusal string

// Values of [Refusal].
const (
	// RefusalSuperseded: a later operation of the same process has overtaken it. It does not count as
	// failed for a rollout.
	RefusalSuperseded Refusal = "superseded"
	// RefusalExpired: no agent of the host was connected until the end of [RolloutPlan.Queue]. It does not
	// count as failed for a rollout.
	RefusalExpired Refusal = "expired"
)

// Rank orders the results of one item: a result replaces a stored result of
// lower rank, and never one of equal or higher rank.
type Rank int

// Values of [Rank], in ascending order.
const (
	RankNone   Rank = iota // no final result
	RankServer             // made by the server, because no agent reported a result
	RankAgent              // reported by the agent
)

// Result is the outcome of one item. The zero Result means that there is no outcome yet.
type Result struct {
	Item   int    `json:"item"`
	Code   Code   `json:"code"`
	Reason Reason `json:"reason,omitempty"`
	Rank   Rank   `json:"rank,omitempty"`
	// Refusal is "" unless Reason is [ReasonRefused] or [ReasonUnreachable].
	Refusal Refusal `json:"refusal,omitempty"`
	// Late is set if this result replaced one that the server had made.
	Late bool `json:"late,omitempty"`
	// Message is "success" for code 0, otherwise the problem, its location and
	// the remedy. It is valid UTF-8 of at most [MaxMessage] bytes.
	Message  string   `json:"message,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Status is the agent's observation after the action; nil if there was none.
	Status *ProcessStatus `json:"status,omitempty"`
	// AcceptedAt, StartedAt and FinishedAt are the agent's estimates of the
	// server's time. A server-made result has FinishedAt only.
	AcceptedAt time.Time `json:"accepted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// State returns the item state that the result leads to.
func (r *Result) State() State {
	if r.Reason == "" {
		return StatePending
	}
	return r.Reason.State()
}

// Bounds of an item's result, in bytes.
const (
	MaxMessage = 5 << 10
	MaxResult  = 16 << 10
)

// ItemResult is an item with its state and result.
type ItemResult struct {
	Index  int // number of the item in its task
	Item   Item
	Spec   *ProcessSpec // shared by the items of a chunk; read-only
	State  State
	Result Result // zero unless State is final
}
