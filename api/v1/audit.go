package v1

import (
	"time"

	"github.com/procfleet/procfleet"
)

// AuditRecord is a line of the audit log. Fields without a value are absent.
type AuditRecord struct {
	ID string `json:"id"` // the same in every duplicate of the record
	// Event is "accepted" for a task, "change" for other changes, "refused" for a call that
	// was rejected or failed, "transition" for a hold, its end, a stage or a cancel of a task, and
	// "finished" for the end of a task.
	Event string    `json:"event"`
	At    time.Time `json:"at"`

	Call        string `json:"call,omitempty"`
	Application string `json:"application,omitempty"`
	Claimed     string `json:"claimed_application,omitempty"` // claimed without authentication
	User        string `json:"user,omitempty"`
	Address     string `json:"address,omitempty"`
	Request     string `json:"request,omitempty"`
	Business    string `json:"business,omitempty"`

	Task    procfleet.TaskID   `json:"task,omitempty"`
	Actions []procfleet.Action `json:"actions,omitempty"`
	Change  string             `json:"change,omitempty"` // kind of the change
	// Processes and Targets list the first 20 names; Specs and Hosts are the total numbers.
	Processes []string `json:"processes,omitempty"`
	Specs     int      `json:"specs,omitempty"`
	Targets   []string `json:"targets,omitempty"`
	Hosts     int      `json:"hosts,omitempty"`
	Items     int      `json:"items,omitempty"`

	Reason  string `json:"reason,omitempty"`
	Field   string `json:"field,omitempty"`
	Repeats int    `json:"repeats,omitempty"` // further refusals like this one

	Number     int                 `json:"number,omitempty"` // of a transition or an end: see [TaskEvent]
	State      procfleet.TaskState `json:"state,omitempty"`
	Counts     procfleet.Counts    `json:"counts,omitempty"` // items by state, without zeros
	AcceptedAt time.Time           `json:"accepted_at,omitzero"`
}

// AuditPage is the response to GET /v1/audit, in the order of arrival. Next is the "after"
// parameter of the following page; More reports whether there is one already.
type AuditPage struct {
	Records []AuditRecord `json:"records"`
	Next    string        `json:"next"`
	More    bool          `json:"more"`
}
