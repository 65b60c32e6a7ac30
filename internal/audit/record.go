package audit

import (
	"cmp"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Event says what a record is about.
type Event string

// The events. Each is also the last token of the record's subject.
const (
	// Accepted: a task was stored, and nothing of it was begun yet. If it is
	// withdrawn, a record Refused of the same request follows.
	Accepted Event = "accepted"
	// Change: an authorized change of data other than tasks is about to be
	// stored. If it fails, a record Refused follows.
	Change Event = "change"
	// Refused: a call was rejected or failed.
	Refused Event = "refused"
	// Finished: a task ended.
	Finished Event = "finished"
)

// Events returns all events.
func Events() []Event { return []Event{Accepted, Change, Refused, Finished} }

const (
	// maxWord bounds a word of a record in bytes, maxListed what a list names.
	maxWord   = procfleet.MaxOriginPart
	maxListed = 20
)

// Record is one line of the audit log. It has no command, path, environment,
// label, output or body of a request: those may hold secrets. What is empty is
// left out.
type Record struct {
	// ID is the same in every repeat of the record.
	ID    string `json:"id"`
	Event Event  `json:"event"`
	// At is by the store's clock for Accepted and Finished, else by that of
	// the dispatcher.
	At time.Time `json:"at"`

	Call        string `json:"call,omitempty"` // full name, as tasks have it as their dialect
	Application string `json:"application,omitempty"`
	// Claimed is the application that a caller claimed without being authenticated.
	Claimed  string `json:"claimed_application,omitempty"`
	User     string `json:"user,omitempty"`
	Address  string `json:"address,omitempty"` // of the connection
	Request  string `json:"request,omitempty"` // as the logs and traces have it
	Business string `json:"business,omitempty"`

	Task    procfleet.TaskID   `json:"task,omitempty"`
	Actions []procfleet.Action `json:"actions,omitempty"`
	// Change names what is changed: "register", "freeze", "set topology" …
	Change string `json:"change,omitempty"`
	// Processes and Targets name the first 20 of them; how many there are is
	// in Specs and Hosts.
	Processes []string `json:"processes,omitempty"`
	Specs     int      `json:"specs,omitempty"`
	Targets   []string `json:"targets,omitempty"`
	Hosts     int      `json:"hosts,omitempty"`
	Items     int      `json:"items,omitempty"` // processes on hosts

	Reason string `json:"reason,omitempty"` // why it was refused, as the native API words it
	Field  string `json:"field,omitempty"`  // what is wrong
	// Repeats is how many more like the record of this id there were until At,
	// of which each would have made a record of its own.
	Repeats int `json:"repeats,omitempty"`

	State      procfleet.TaskState `json:"state,omitempty"`
	Counts     procfleet.Counts    `json:"counts,omitempty"` // items by state; those that are 0 are left out
	AcceptedAt time.Time           `json:"accepted_at,omitzero"`
}

// OfTask returns the part that all records about a task have in common.
func OfTask(event Event, t *procfleet.Task) Record {
	return Record{
		ID: string(t.ID) + "/" + string(event), Event: event, At: t.CreatedAt,
		Call: t.Dialect, Application: t.Application, Business: t.Business,
		User: t.Origin.User, Address: t.Origin.Address, Request: t.Origin.Request,
		Task: t.ID, Actions: t.Actions, Items: t.Items,
	}
}

// OfEnd returns the record of a task's end.
func OfEnd(t *procfleet.Task) Record {
	r := OfTask(Finished, t)
	r.State, r.AcceptedAt = t.State, t.CreatedAt
	if !t.FinishedAt.IsZero() {
		r.At = t.FinishedAt
	}
	r.Counts = NonZero(t.Counts)
	return r
}

// NonZero returns the counts without those that are 0.
func NonZero(counts procfleet.Counts) procfleet.Counts {
	left := make(procfleet.Counts)
	for state, n := range counts {
		if n > 0 {
			left[state] = n
		}
	}
	return left
}

// AddProcess names a process.
func (r *Record) AddProcess(name string) {
	r.Specs++
	if len(r.Processes) < maxListed {
		r.Processes = append(r.Processes, clip(name))
	}
}

// AddTarget names a host, or the agent id that was given instead.
func (r *Record) AddTarget(t *procfleet.Target) {
	r.Hosts++
	if len(r.Targets) < maxListed {
		r.Targets = append(r.Targets, clip(cmp.Or(t.Host.String(), t.AgentID, t.Label)))
	}
}

// bounded cuts the parts that come from callers.
func (r *Record) bounded() {
	for _, word := range []*string{&r.Call, &r.Application, &r.Claimed, &r.User, &r.Address, &r.Request, &r.Business, &r.Field} {
		*word = clip(*word)
	}
}

// clip bounds a word.
func clip(s string) string {
	if len(s) <= maxWord {
		return s
	}
	return strings.ToValidUTF8(s[:maxWord], "")
}
