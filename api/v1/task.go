// Package v1 declares the JSON types of request and response bodies of
// procfleet's native HTTP API, /v1/.... Dispatchers encode responses with these
// types, and package client decodes them.
//
// A dispatcher decodes some members of a request from raw JSON, to apply
// defaults and to name the invalid element in its error. The names of members
// are declared here only.
//
// Responses may gain members; clients must ignore members that they do not know.
package v1

import (
	"time"

	"github.com/procfleet/procfleet"
)

// TaskRequest is the body of POST /v1/tasks: either the members of a single
// operation together with the options, or a list under "operations".
type TaskRequest struct {
	Operation
	Operations []Operation `json:"operations,omitzero"`
	TaskOptions
}

// TaskOptions are the members of a [TaskRequest] that apply to all operations.
type TaskOptions struct {
	Strict *bool `json:"strict,omitempty"` // nil: true; false: an invalid operation becomes failed items
	// Timeout is the time from acceptance to the deadline, 1 s to 7 days; zero
	// is computed from the operations, plus 60 s.
	Timeout  procfleet.Duration `json:"timeout,omitempty"`
	Business string             `json:"business,omitempty"`
	Callback string             `json:"callback,omitempty"` // URL to notify when the task ends
	// Rollout releases the hosts gradually; nil delivers all operations at once. Timeout
	// then counts for each host from its release.
	Rollout *procfleet.RolloutPolicy `json:"rollout,omitempty"`
	// Queue lets operations wait for hosts without an agent; nil ends them as unreachable. A task
	// with a queue has a rollout, by default of all hosts at once.
	Queue *procfleet.HostQueue `json:"queue,omitempty"`
}

// Operation is one action on one process across a set of hosts. It needs Hosts
// or Agents, unless Registered or Select is set. Duplicate hosts count once.
type Operation struct {
	Action procfleet.Action `json:"action,omitempty"`
	// Process starts from [procfleet.DefaultSpec]: a zero field means zero.
	Process procfleet.ProcessSpec `json:"process,omitzero"`
	// Select selects processes in the catalog of the request's business, and
	// all hosts of the modules to which they are bound. Process, Hosts and
	// Agents must then be empty.
	Select *procfleet.Selection `json:"select,omitempty"`
	// Registered uses the registered spec of each host: Process then has
	// Namespace and Name only. Without Hosts and Agents the operation covers
	// every host where the process is registered.
	Registered bool             `json:"registered,omitempty"`
	Hosts      []procfleet.Host `json:"hosts,omitempty"`
	// Agents are agent ids. The item of an id that no live agent has announced
	// ends as unreachable.
	Agents []string `json:"agents,omitempty"`
}

// TaskCreated is the response to an accepted [TaskRequest].
type TaskCreated struct {
	ID procfleet.TaskID `json:"id"`
}

// Task is the state of one task.
type Task struct {
	ID     procfleet.TaskID    `json:"id"`
	State  procfleet.TaskState `json:"state"`
	Counts procfleet.Counts    `json:"counts"` // one entry per state; the sum is Items
	Items  int                 `json:"items"`  // number of items, each one process on one host
	// Actions are the distinct actions of the operations, never nil.
	Actions    []procfleet.Action `json:"actions"`
	CreatedAt  time.Time          `json:"created_at"`
	Deadline   time.Time          `json:"deadline"`    // time at which items without a result fail
	FinishedAt *time.Time         `json:"finished_at"` // nil while the task is open
	ExpiresAt  time.Time          `json:"expires_at"`  // when the server deletes the task

	RejectReason string `json:"reject_reason,omitempty"`
	Dialect      string `json:"dialect"` // API call that submitted the task
	Application  string `json:"application"`
	Business     string `json:"business"`
	// Seq is the number of control transitions so far, such as pauses; 0 without any.
	Seq int `json:"seq"`
	// Hold is nil unless the task is paused.
	Hold *Hold `json:"hold"`
	// Cancel is nil unless the task was canceled.
	Cancel *Cancel `json:"cancel"`
	// Rollout is nil unless the hosts are released gradually.
	Rollout *Rollout `json:"rollout"`
	// UndoOf is the rollout that this task reverts, and UndoneBy the task that reverts this one.
	UndoOf   procfleet.TaskID `json:"undo_of,omitempty"`
	UndoneBy procfleet.TaskID `json:"undone_by,omitempty"`
	// RetryOf is the task whose items this task repeats; empty if it is no retry.
	RetryOf procfleet.TaskID `json:"retry_of,omitempty"`
	// RetriedBy lists the retries of the task, in their order.
	RetriedBy []procfleet.TaskID `json:"retried_by,omitempty"`
	// TraceID is the id of the OpenTelemetry trace of the task, 32 hexadecimal digits; empty without a
	// trace.
	TraceID string `json:"trace_id,omitempty"`
	// Callback is the URL without user info, query and fragment, which may
	// contain secrets: callers other than the submitter can read the task.
	Callback string `json:"callback,omitempty"`
}

// Done reports whether the task is finished or rejected.
func (t *Task) Done() bool { return t.State.Done() }

// Succeeded reports whether the task is finished and no item failed.
func (t *Task) Succeeded() bool {
	return t.State == procfleet.TaskFinished && t.Counts.Failed() == 0
}

// Rollout is the progress of a task whose hosts are released gradually; see
// [procfleet.Rollout].
type Rollout struct {
	PlannedRollout
	Hosts     int                    `json:"hosts"`
	Released  int                    `json:"released"` // hosts that were released
	Active    int                    `json:"active"`   // released hosts with open items that do not wait
	Waiting   int                    `json:"waiting"`  // released hosts whose items wait for an agent
	Failed    int                    `json:"failed"`   // failed hosts
	Stage     int                    `json:"stage"`    // number of the current stage, from 1
	Phase     procfleet.RolloutPhase `json:"phase"`    // phase of the current stage
	Since     time.Time              `json:"since"`    // begin of the phase
	OnFailure procfleet.OnFailure    `json:"on_failure"`
	// Hold is nil unless the rollout waits for a caller: it releases no hosts.
	Hold *Hold `json:"hold"`
}

// RolloutStage is one stage of a [Rollout].
type RolloutStage struct {
	Hosts int `json:"hosts"`
}

// TaskResume is the optional body of POST /v1/tasks/{id}/resume.
type TaskResume struct {
	// Hold is the kind of the hold that ends: operator by default, or budget, stalled, unhealthy or
	// inconclusive of a rollout.
	Hold procfleet.HoldKind `json:"hold,omitempty"`
	// MaxFailures is the number of failed hosts to tolerate from now on. The hold budget needs
	// it.
	MaxFailures procfleet.Amount `json:"max_failures,omitzero"`
	TaskControl
}

// TaskApproval is the body of POST /v1/tasks/{id}/approve.
type TaskApproval struct {
	Stage int `json:"stage"` // number of the stage that has ended, from 1
	TaskControl
}

// Hold suspends the delivery of a task; see [procfleet.Hold].
type Hold struct {
	Kind   procfleet.HoldKind `json:"kind"`
	Reason string             `json:"reason,omitempty"`
	Since  time.Time          `json:"since"`
}

// Cancel ends a task; see [procfleet.Cancel].
type Cancel struct {
	Mode   procfleet.CancelMode `json:"mode"`
	Reason string               `json:"reason,omitempty"`
	Since  time.Time            `json:"since"`
}

// TaskCancel is the optional body of POST /v1/tasks/{id}/cancel.
type TaskCancel struct {
	// Mode is drain by default.
	Mode procfleet.CancelMode `json:"mode,omitempty"`
	// Hosts limits the cancel to items on these hosts: the task stays open for the others.
	// Empty cancels the task.
	Hosts []procfleet.Host `json:"hosts,omitempty"`
	TaskControl
}

// TaskUndo is the optional body of POST /v1/tasks/{id}/undo.
type TaskUndo struct {
	Speed procfleet.UndoSpeed `json:"speed,omitempty"` // default window
	TaskControl
}

// TaskRetry is the optional body of POST /v1/tasks/{id}/retry.
type TaskRetry struct {
	// States are the states of the items to repeat; by default failed, unreachable,
	// timed_out and cancelled.
	States []procfleet.State `json:"states,omitempty"`
	// Hosts limits the retry to items on these hosts; empty means all.
	Hosts []procfleet.Host `json:"hosts,omitempty"`
	TaskControl
}

// TaskControl is the optional body of POST /v1/tasks/{id}/pause and /resume.
type TaskControl struct {
	// Reason is stored with the hold or cancel and in the audit log, at most
	// [procfleet.MaxHoldReason] bytes.
	Reason string `json:"reason,omitempty"`
	// IfSeq is the expected Seq of the task; nil accepts any.
	IfSeq *int `json:"if_seq,omitempty"`
}

// TaskPage is a page of tasks, newest first. Next is the cursor of the next
// page, empty at the end.
type TaskPage struct {
	Tasks []Task `json:"tasks"`
	Next  string `json:"next"`
}

// Result is the state of one item of a task.
type Result struct {
	Item int `json:"item"` // number of the item in its task
	// Host is zero if the caller named an agent id that no agent has announced.
	Host      procfleet.Host   `json:"host"`
	AgentID   string           `json:"agent_id,omitempty"` // agent id in the request
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	Key       string           `json:"key"` // identity of the process, see [procfleet.ProcessSpec.Key]
	Action    procfleet.Action `json:"action"`
	State     procfleet.State  `json:"state"`
	Code      procfleet.Code   `json:"code"`
	Reason    procfleet.Reason `json:"reason,omitempty"`
	// Refusal says why the operation was not begun, if a later one has overtaken it, or no agent was
	// connected until the end of the queue.
	Refusal procfleet.Refusal `json:"refusal,omitempty"`
	// Message is "success" for code 0, empty while the item is open, and
	// otherwise the problem, its location and the remedy.
	Message  string   `json:"message"`
	Warnings []string `json:"warnings,omitempty"`
	// Status is the agent's observation after the action; nil if there was none.
	Status     *procfleet.ProcessStatus `json:"status,omitempty"`
	AcceptedAt time.Time                `json:"accepted_at,omitzero"`
	StartedAt  time.Time                `json:"started_at,omitzero"`
	FinishedAt time.Time                `json:"finished_at,omitzero"`
	Late       bool                     `json:"late,omitempty"` // this result replaced one that the server had made
}

// ResultPage is a page of results, failures first. Next is the cursor of the
// next page, empty at the end.
type ResultPage struct {
	Results []Result `json:"results"`
	Next    string   `json:"next"`
}

// Plan is the response to a [TaskRequest] or [TaskRetry] with plan=true: the effect that a task
// would have now. No task is created.
type Plan struct {
	Refusal string `json:"refusal,omitempty"` // cause if the request would be rejected; otherwise empty
	Items   int    `json:"items"`             // number of items; 0 if the request would be rejected
	Hosts   int    `json:"hosts"`             // number of distinct hosts in Operations
	// WithoutAgent is the number of these hosts without a live agent.
	WithoutAgent int `json:"without_agent"`
	// Operations has one entry for each selected process and for each registered
	// spec, otherwise one for each operation of the request. Operations and
	// Problems are never nil.
	Operations []PlannedOperation `json:"operations"`
	Problems   []PlanProblem      `json:"problems"`
	// Rollout is nil unless the hosts would be released gradually.
	Rollout *PlannedRollout `json:"rollout,omitempty"`
}

// PlannedRollout has the limits and stages of a [Rollout] that would begin.
type PlannedRollout struct {
	Policy      string         `json:"policy,omitempty"` // name of the stored policy, "" without one
	Window      int            `json:"window"`           // maximum number of hosts at work
	MaxFailures *int           `json:"max_failures"`     // failed hosts that are tolerated; nil = all
	Stages      []RolloutStage `json:"stages"`           // never empty
	Zones       *RolloutZones  `json:"zones,omitempty"`  // nil without limits of zones
	// Queue is nil unless operations wait for hosts without an agent.
	Queue *procfleet.HostQueue `json:"queue,omitempty"`
}

// RolloutZones has the limits of the zones of a [Rollout]; 0 = no limit.
type RolloutZones struct {
	Window int `json:"window"`  // maximum number of hosts at work in each zone
	AtOnce int `json:"at_once"` // maximum number of zones with hosts at work
	// Groups are the zones of a [Plan], in the order in which hosts mention them; nil for a task.
	Groups []ZoneSize `json:"groups,omitempty"`
}

// ZoneSize is a zone: a cloud area, set, module or value of a label, "" for hosts without one.
type ZoneSize struct {
	Name  string `json:"name"`
	Hosts int    `json:"hosts"`
}

// PlannedOperation is one action on one process.
type PlannedOperation struct {
	Index     int                    `json:"index"` // index of the operation in the request
	Action    procfleet.Action       `json:"action"`
	ProcessID int64                  `json:"process_id,omitempty"` // catalog id; 0 if the process was not selected from the catalog
	Name      string                 `json:"name"`                 // name of the process, or its key if it has none
	Process   *procfleet.ProcessSpec `json:"process"`              // nil if the registration is missing
	Hosts     []PlannedHost          `json:"hosts"`
}

// PlannedHost is one host of a [PlannedOperation].
type PlannedHost struct {
	Host    procfleet.Host `json:"host"` // zero if no agent has announced AgentID
	AgentID string         `json:"agent_id,omitempty"`
	// Modules are the "set/module" names through which the host was selected.
	Modules []string `json:"modules,omitempty"`
	Alive   bool     `json:"alive"` // the host has a live agent
	// NewerTask is the newest task that operated the process on the host after the task
	// to be retried; empty if there is none, or if the plan is not of a retry.
	NewerTask procfleet.TaskID `json:"newer_task,omitempty"`
}

// PlanProblem explains why a part of the request has less effect than requested.
type PlanProblem struct {
	Index     int           `json:"index"` // index of the operation in the request
	Reason    ProblemReason `json:"reason"`
	ProcessID int64         `json:"process_id,omitempty"` // process concerned, if any
	Name      string        `json:"name,omitempty"`       // name of the process concerned, if any
	Message   string        `json:"message"`
}

// ProblemReason is the class of a [PlanProblem], for software.
type ProblemReason string

// Values of [ProblemReason].
const (
	UnknownProcess ProblemReason = "unknown_process" // no process of the catalog has the id or matches the name
	UnfitSpec      ProblemReason = "unfit_spec"      // the process lacks a field that the action requires
	NotBound       ProblemReason = "not_bound"       // the process is bound to no module
	UnknownModule  ProblemReason = "unknown_module"  // the topology has no module of this name
	UnknownSet     ProblemReason = "unknown_set"     // the topology has no set of this name
	NoHosts        ProblemReason = "no_hosts"        // the module has no hosts
	FilteredOut    ProblemReason = "filtered_out"    // the requested sets and modules exclude all modules of the process
	NotRegistered  ProblemReason = "not_registered"  // the process is not registered on some hosts
	NoAgent        ProblemReason = "no_agent"        // some hosts have no live agent; their items end as unreachable
	NewerOperation ProblemReason = "newer_operation" // later tasks operated the process on some hosts; a retry may undo it
	NotSearched    ProblemReason = "not_searched"    // too many later tasks to search all for newer operations
)

// Failure is the body of every error response.
type Failure struct {
	Error Error `json:"error"`
}

// Error is the cause of a rejected request.
type Error struct {
	Code    ErrorCode        `json:"code"`
	Message string           `json:"message"`
	Field   string           `json:"field,omitempty"` // invalid member or parameter, for example "process.proc_name"
	Task    procfleet.TaskID `json:"task,omitempty"`  // task concerned, if any
}

// ErrorCode is the class of an [Error], for software.
type ErrorCode string

// Values of [ErrorCode].
const (
	CodeInternal         ErrorCode = "internal"
	CodeInvalidRequest   ErrorCode = "invalid_request"
	CodeTooLarge         ErrorCode = "too_large"
	CodeNotFound         ErrorCode = "not_found"
	CodeMethodNotAllowed ErrorCode = "method_not_allowed"
	CodeConflict         ErrorCode = "conflict"
	CodeOutsideWindow    ErrorCode = "outside_window"
	CodeExpired          ErrorCode = "expired"
	CodeUnavailable      ErrorCode = "unavailable"
	CodeStoreFull        ErrorCode = "store_full"
	CodeUnknown          ErrorCode = "unknown" // the task may or may not have been accepted
	CodeUnauthenticated  ErrorCode = "unauthenticated"
	CodeForbidden        ErrorCode = "forbidden"
)
