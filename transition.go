package procfleet

import "time"

// TransitionKind is the kind of a [Transition].
type TransitionKind string

// Values of [TransitionKind].
const (
	// TransitionStage: a stage of a rollout began without an approval. The first stage begins
	// with the task and has no transition.
	TransitionStage TransitionKind = "stage"
	// TransitionHeld: the task was paused, or its rollout was held.
	TransitionHeld TransitionKind = "held"
	// TransitionResumed: such a hold ended.
	TransitionResumed TransitionKind = "resumed"
	// TransitionApproved: a stage of a rollout was approved, and the next one began.
	TransitionApproved TransitionKind = "approved"
	// TransitionSettled: only items remain open that wait for their hosts, for the first time.
	TransitionSettled TransitionKind = "settled"
	// TransitionCancelled: the task was canceled, or its cancel now interrupts.
	TransitionCancelled TransitionKind = "cancelled"
	// TransitionItemsCancelled: items of the task were canceled.
	TransitionItemsCancelled TransitionKind = "items_cancelled"
)

// Transition is a change of the course of a task between its acceptance and its end.
type Transition struct {
	Kind TransitionKind
	At   time.Time // by the store's clock
	// Seq is the task's Seq after the transition.
	Seq int
	// Stage is the stage of a rollout that began, was held or went on, from 0.
	Stage int `json:",omitzero"`
	// Hold is the kind of the hold that began or ended.
	Hold HoldKind `json:",omitzero"`
	// Mode is that of a cancel.
	Mode CancelMode `json:",omitzero"`
	// Reason of a hold or a cancel, at most [MaxHoldReason] bytes.
	Reason string `json:",omitzero"`
}
