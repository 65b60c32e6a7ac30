package v1

import (
	"time"

	"github.com/procfleet/procfleet"
)

// TaskEvent is an event of GET /v1/tasks/events. The events of a task have the numbers from 1,
// in their order and without gaps. Duplicates have the same ID.
type TaskEvent struct {
	ID     string           `json:"id"` // "<task>/<number>"
	Number int              `json:"number"`
	Task   procfleet.TaskID `json:"task"`
	// Kind is "accepted", that of a [procfleet.Transition], "finished" or "rejected".
	Kind        string             `json:"kind"`
	At          time.Time          `json:"at"` // by the store's clock
	Application string             `json:"application"`
	Business    string             `json:"business"`
	Actions     []procfleet.Action `json:"actions"`
	Items       int                `json:"items"`

	// Of a transition: Seq is the task's seq after it, Stage the stage of a rollout, from 1, that
	// began, was held or went on, Hold the kind of the hold, Mode that of the cancel.
	Seq   int                  `json:"seq,omitempty"`
	Stage int                  `json:"stage,omitempty"`
	Hold  procfleet.HoldKind   `json:"hold,omitempty"`
	Mode  procfleet.CancelMode `json:"mode,omitempty"`
	// Reason is that of a hold, of a cancel, or of an operation outside of maintenance windows.
	Reason string `json:"reason,omitempty"`

	// Of an end: the state of the task, and the items by state, without zeros.
	State  procfleet.TaskState `json:"state,omitempty"`
	Counts procfleet.Counts    `json:"counts,omitempty"`
}
