package audit

import (
	"cmp"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Event is the kind of a record.
type Event string

// Values of [Event], which are also the last token of a record's NATS subject.
const (
	// Accepted: a task was stored, and none of it has begun. If the task is
	// withdrawn, a Refused record of the same request follows.
	Accepted Event = "accepted"
	// Change: an authorized change of data other than tasks is about to be
	// stored. If storing fails, a Refused record follows.
	Change Event = "change"
	// Refused: a call was rejected or failed.
	Refused Event = "refused"
	// Transition: a task was paused, resumed or canceled, or its rollout was held or went on.
	Transition Event = "transition"
	// Finished: a task ended.
	Finished Event = "finished"
)

// Events returns all events.
func Events() []Event { return []Event{Accepted, Change, Refused, Transition, Finished} }

const (
	// maxText is the maximum size of a string in bytes, maxListed the maximum
	// length of a list.
	maxText   = procfleet.MaxOriginPart
	maxListed = 20
)

// Record is one line of the audit log. It contains no command, path, environment,
// label, output or body of a request, which may contain secrets. Empty fields are
// omitted.
type Record struct {
	// ID is the same in every duplicate of the record.
	ID    string `json:"id"`
	Event Event  `json:"event"`
	// At is the time by the store's clock for Accepted, Transition and Finished, otherwise
	// by the dispatcher's clock.
	At time.Time `json:"at"`

	Call        string `json:"call,omitempty"` // full name of the API call, as in procfleet.Task.Dialect
	Application string `json:"application,omitempty"`
	// Claimed is the application that a caller claimed without being authenticated.
	Claimed  string `json:"claimed_application,omitempty"`
	User     string `json:"user,omitempty"`
	Address  string `json:"address,omitempty"` // peer address of the connection
	Request  string `json:"request,omitempty"` // request id, as in logs and traces
	Business string `json:"business,omitempty"`

	Task    procfleet.TaskID   `json:"task,omitempty"`
	Actions []procfleet.Action `json:"actions,omitempty"`
	// Change is the kind of the change: "register", "freeze", "set topology" …, or that of the
	// transition, with its hold or mode: "held budget", "cancelled drain", "stage 2" …
	Change string `json:"change,omitempty"`
	// Processes and Targets list the first 20 names; Specs and Hosts are the
	// total numbers.
	Processes []string `json:"processes,omitempty"`
	Specs     int      `json:"specs,omitempty"`
	Targets   []string `json:"targets,omitempty"`
	Hosts     int      `json:"hosts,omitempty"`
	Items     int      `json:"items,omitempty"` // number of items, each one process on one host

	Reason string `json:"reason,omitempty"` // cause of the refusal, worded as in the native API, or the caller's reason for a change or for an operation outside of maintenance windows
	Field  string `json:"field,omitempty"`  // invalid field
	// Repeats is the number of further refusals like this one until At that have
	// no records of their own.
	Repeats int `json:"repeats,omitempty"`

	// Number is that of the event of Transition or Finished among those of the task. The
	// acceptance has the number 1.
	Number     int                 `json:"number,omitempty"`
	State      procfleet.TaskState `json:"state,omitempty"`
	Counts     procfleet.Counts    `json:"counts,omitempty"` // items by state, without zeros
	AcceptedAt time.Time           `json:"accepted_at,omitzero"`
}

// OfTask returns a record with the fields common to all records about a task.
func OfTask(event Event, t *procfleet.Task) Record {
	return Record{
		ID: string(t.ID) + "/" + string(event), Event: event, At: t.CreatedAt,
		Call: t.Dialect, Application: t.Application, Business: t.Business,
		User: t.Origin.User, Address: t.Origin.Address, Request: t.Origin.Request, Reason: t.Origin.Override,
		Task: t.ID, Actions: t.Actions, Items: t.Items,
	}
}

// OfEnd returns the record of the end of a task.
func OfEnd(t *procfleet.Task) Record {
	r := OfTask(Finished, t)
	r.Number, r.State, r.AcceptedAt = t.Transitions+2, t.State, t.CreatedAt
	if !t.FinishedAt.IsZero() {
		r.At = t.FinishedAt
	}
	r.Counts = NonZero(t.Counts)
	return r
}

// NonZero returns a copy of counts without zeros.
func NonZero(counts procfleet.Counts) procfleet.Counts {
	left := make(procfleet.Counts)
	for state, n := range counts {
		if n > 0 {
			left[state] = n
		}
	}
	return left
}

// AddProcess counts a process and lists its name.
func (r *Record) AddProcess(name string) {
	r.Specs++
	if len(r.Processes) < maxListed {
		r.Processes = append(r.Processes, clip(name))
	}
}

// AddTarget counts a target and lists its host, or the agent id that was given.
func (r *Record) AddTarget(t *procfleet.Target) {
	r.Hosts++
	if len(r.Targets) < maxListed {
		r.Targets = append(r.Targets, clip(cmp.Or(t.Host.String(), t.AgentID, t.Label)))
	}
}

// bounded truncates the strings that callers supplied.
func (r *Record) bounded() {
	for _, text := range []*string{&r.Call, &r.Application, &r.Claimed, &r.User, &r.Address, &r.Request, &r.Business, &r.Field} {
		*text = clip(*text)
	}
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "")
}
