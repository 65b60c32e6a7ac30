// Package v1 declares the JSON types of procfleet's native HTTP API, /v1/...:
// each body of a request and of an answer, once. Dispatchers encode answers
// with these types, and package client decodes them.
//
// A dispatcher reads some members of a request in a raw form, to apply defaults
// and to name the invalid element in its error. The names of members are
// declared here only.
//
// Answers may gain members; programs must ignore those that they do not know.
package v1

import (
	"time"

	"github.com/procfleet/procfleet"
)

// TaskRequest is the body of POST /v1/tasks: either a single operation, whose
// members stand beside the options, or several under "operations".
type TaskRequest struct {
	Operation
	Operations []Operation `json:"operations,omitzero"`
	TaskOptions
}

// TaskOptions are the members of a [TaskRequest] that concern all operations.
type TaskOptions struct {
	Strict *bool `json:"strict,omitempty"` // nil is true; false: an invalid operation fails on its hosts
	// Timeout is from acceptance to the deadline, 1 s to 7 days; zero is what
	// the operations may take, plus 60 s.
	Timeout  procfleet.Duration `json:"timeout,omitempty"`
	Business string             `json:"business,omitempty"`
	Callback string             `json:"callback,omitempty"` // URL that is notified of the end of the task
}

// Operation is one action on one process across a set of hosts. It needs Hosts
// or Agents, unless the process is Registered or there is a Select. A host that
// is named twice counts once.
type Operation struct {
	Action procfleet.Action `json:"action,omitempty"`
	// Process starts from [procfleet.DefaultSpec]: a zero field means zero.
	Process procfleet.ProcessSpec `json:"process,omitzero"`
	// Select selects processes in the catalog of the request's business, and
	// all hosts of the modules that they are bound to. Process, Hosts and
	// Agents are then empty.
	Select *procfleet.Selection `json:"select,omitempty"`
	// Registered takes the process from its registration on each host: Process
	// then has Namespace and Name only. Without Hosts and Agents the operation
	// covers every host where the process is registered.
	Registered bool             `json:"registered,omitempty"`
	Hosts      []procfleet.Host `json:"hosts,omitempty"`
	// Agents are agent ids. An id that no live agent has announced ends as
	// unreachable.
	Agents []string `json:"agents,omitempty"`
}

// TaskCreated is the answer to an accepted [TaskRequest].
type TaskCreated struct {
	ID procfleet.TaskID `json:"id"`
}

// Task is the state of one task.
type Task struct {
	ID     procfleet.TaskID    `json:"id"`
	State  procfleet.TaskState `json:"state"`
	Counts procfleet.Counts    `json:"counts"` // every state; the counts add up to Items
	Items  int                 `json:"items"`  // one process on one host each
	// Actions are the distinct actions of the operations, never nil.
	Actions    []procfleet.Action `json:"actions"`
	CreatedAt  time.Time          `json:"created_at"`
	Deadline   time.Time          `json:"deadline"`    // when pending items time out
	FinishedAt *time.Time         `json:"finished_at"` // nil while the task is open
	ExpiresAt  time.Time          `json:"expires_at"`  // when the server deletes the task

	RejectReason string `json:"reject_reason,omitempty"`
	Dialect      string `json:"dialect"` // the call that made the task
	Application  string `json:"application"`
	Business     string `json:"business"`
	// Callback is the URL without user part, query and fragment, which may hold
	// secrets: callers other than the submitter read the task too.
	Callback string `json:"callback,omitempty"`
}

// Done reports whether the task is finished or rejected.
func (t *Task) Done() bool { return t.State.Done() }

// Succeeded reports whether the task is finished and no item failed.
func (t *Task) Succeeded() bool {
	return t.State == procfleet.TaskFinished && t.Counts.Failed() == 0
}

// TaskPage is a page of tasks, newest first. Next is the cursor of the next
// page, empty at the end.
type TaskPage struct {
	Tasks []Task `json:"tasks"`
	Next  string `json:"next"`
}

// Result is the state of one item of a task.
type Result struct {
	Item int `json:"item"` // the item's number in its task
	// Host is zero if the caller named an agent id that no agent has announced.
	Host      procfleet.Host   `json:"host"`
	AgentID   string           `json:"agent_id,omitempty"` // as the caller named it
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	Key       string           `json:"key"` // see [procfleet.ProcessSpec.Key]
	Action    procfleet.Action `json:"action"`
	State     procfleet.State  `json:"state"`
	Code      procfleet.Code   `json:"code"`
	Reason    procfleet.Reason `json:"reason,omitempty"`
	// Message is "success" for code 0, empty while the item is open, and
	// otherwise says what failed, where, and what to do.
	Message  string   `json:"message"`
	Warnings []string `json:"warnings,omitempty"`
	// Status is what the agent observed after the action; nil if it did not
	// inspect the process.
	Status     *procfleet.ProcessStatus `json:"status,omitempty"`
	AcceptedAt time.Time                `json:"accepted_at,omitzero"`
	StartedAt  time.Time                `json:"started_at,omitzero"`
	FinishedAt time.Time                `json:"finished_at,omitzero"`
	Late       bool                     `json:"late,omitempty"` // replaced a result that the server had made
}

// ResultPage is a page of results, failures first. Next is the cursor of the
// next page, empty at the end.
type ResultPage struct {
	Results []Result `json:"results"`
	Next    string   `json:"next"`
}

// Plan is the answer to a [TaskRequest] with plan=true: what a task would do
// now. No task is made.
type Plan struct {
	Refusal string `json:"refusal,omitempty"` // why the request would be rejected; empty if accepted
	Items   int    `json:"items"`             // of the task; 0 if the request would be rejected
	Hosts   int    `json:"hosts"`             // distinct hosts of Operations
	// WithoutAgent is how many of the Hosts have no live agent.
	WithoutAgent int `json:"without_agent"`
	// Operations has one entry for each selected process and each registered
	// spec, otherwise one for each operation of the request. It is never nil,
	// nor is Problems.
	Operations []PlannedOperation `json:"operations"`
	Problems   []PlanProblem      `json:"problems"`
}

// PlannedOperation is one action on one process.
type PlannedOperation struct {
	Index     int                    `json:"index"` // of the operation in the request
	Action    procfleet.Action       `json:"action"`
	ProcessID int64                  `json:"process_id,omitempty"` // in the catalog; 0 if the process was not selected
	Name      string                 `json:"name"`                 // of the process, or its key if it has none
	Process   *procfleet.ProcessSpec `json:"process"`              // nil if the registration is missing
	Hosts     []PlannedHost          `json:"hosts"`
}

// PlannedHost is one host of a [PlannedOperation].
type PlannedHost struct {
	Host    procfleet.Host `json:"host"` // zero if no agent has announced AgentID
	AgentID string         `json:"agent_id,omitempty"`
	// Modules are the modules by which the host was selected, as "set/module".
	Modules []string `json:"modules,omitempty"`
	Alive   bool     `json:"alive"` // the host has a live agent
}

// PlanProblem says why a part of the request has no effect, or less effect.
type PlanProblem struct {
	Index     int           `json:"index"` // of the operation in the request
	Reason    ProblemReason `json:"reason"`
	ProcessID int64         `json:"process_id,omitempty"` // of the process concerned, if any
	Name      string        `json:"name,omitempty"`       // of that process
	Message   string        `json:"message"`
}

// ProblemReason is the class of a [PlanProblem], for software.
type ProblemReason string

// The reasons.
const (
	UnknownProcess ProblemReason = "unknown_process" // no process of the catalog has the id or matches the name
	UnfitSpec      ProblemReason = "unfit_spec"      // the process lacks what the action needs
	NotBound       ProblemReason = "not_bound"       // the process is bound to no module
	UnknownModule  ProblemReason = "unknown_module"  // the topology has no module of this name
	UnknownSet     ProblemReason = "unknown_set"     // the topology has no set of this name
	NoHosts        ProblemReason = "no_hosts"        // the module has no hosts
	FilteredOut    ProblemReason = "filtered_out"    // the requested sets and modules exclude all modules of the process
	NotRegistered  ProblemReason = "not_registered"  // the process is not registered on some hosts
	NoAgent        ProblemReason = "no_agent"        // some hosts have no live agent; their items end as unreachable
)

// Failure is the body of every answer that is not a success.
type Failure struct {
	Error Error `json:"error"`
}

// Error says why a request was rejected.
type Error struct {
	Code    ErrorCode        `json:"code"`
	Message string           `json:"message"`
	Field   string           `json:"field,omitempty"` // the invalid member or parameter, for example "process.proc_name"
	Task    procfleet.TaskID `json:"task,omitempty"`  // the task concerned, if any
}

// ErrorCode is the class of an [Error], for software.
type ErrorCode string

// The error codes.
const (
	CodeInternal         ErrorCode = "internal"
	CodeInvalidRequest   ErrorCode = "invalid_request"
	CodeTooLarge         ErrorCode = "too_large"
	CodeNotFound         ErrorCode = "not_found"
	CodeMethodNotAllowed ErrorCode = "method_not_allowed"
	CodeConflict         ErrorCode = "conflict"
	CodeExpired          ErrorCode = "expired"
	CodeUnavailable      ErrorCode = "unavailable"
	CodeStoreFull        ErrorCode = "store_full"
	CodeUnknown          ErrorCode = "unknown" // the task may or may not have been accepted
	CodeUnauthenticated  ErrorCode = "unauthenticated"
	CodeForbidden        ErrorCode = "forbidden"
)
