package agentproto

import (
	"encoding/json"
	"strings"
	"time"
)

// Results contains final results of one task from one host. The agent sends it
// as a request to [ResultSubject], and a worker replies with a [Receipt]. The
// agent resends a result, to any worker, until a receipt names its item.
type Results struct {
	Header
	Task     string     `json:"task"`
	Host     string     `json:"host"`
	Instance string     `json:"instance"`
	Results  ResultList `json:"results"`
}

// Result is the final outcome of one command item.
type Result struct {
	Item int `json:"item"`
	// Code is a published GSE code, Reason the matching word: succeeded,
	// already_running, not_running, command_failed, check_failed, refused.
	Code     int      `json:"code"`
	Reason   string   `json:"reason"`
	Refusal  string   `json:"refusal,omitempty"` // [RefusalSuperseded], or "" for other reasons to refuse
	Message  string   `json:"message"`           // exactly "success" for code 0
	Warnings []string `json:"warnings,omitempty"`
	Status   *Status  `json:"status,omitempty"`

	AcceptedAt time.Time `json:"accepted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// Reasons of a [Result].
const (
	ReasonSucceeded      = "succeeded"
	ReasonAlreadyRunning = "already_running"
	ReasonNotRunning     = "not_running"
	ReasonCommandFailed  = "command_failed"
	ReasonCheckFailed    = "check_failed"
	ReasonRefused        = "refused"
	ReasonCancelled      = "cancelled"
)

// RefusalSuperseded is the Refusal of an operation that a later one of the same process has overtaken.
const RefusalSuperseded = "superseded"

// Codes of a [Result].
const (
	CodeSuccess        = 0
	CodeAgentAbnormal  = 117
	CodeAlreadyRunning = 828
	CodeNotRunning     = 829
	CodeUnknownAction  = 832
	CodeCheckFailed    = 836
	CodeFailed         = 65535
)

// Bounds of a result in bytes; agents truncate to them at a UTF-8 boundary.
const (
	MaxMessage = 5 << 10
	MaxResult  = 16 << 10
)

// Bounded returns a copy of r within [MaxMessage] and [MaxResult] that is valid
// UTF-8. It truncates the message first. If the result is still too large, it
// shortens the long texts of Status, and then replaces the warnings.
func (r Result) Bounded() Result {
	r.Message = clip(r.Message, MaxMessage)
	if r.encodedSize() <= MaxResult {
		return r
	}
	if r.Status != nil {
		short := *r.Status
		for _, text := range []*string{&short.Command, &short.Version, &short.Health, &short.Evidence, &short.Phase, &short.Stat, &short.AgentID} {
			*text = clip(*text, 512)
		}
		r.Status = &short
	}
	if r.encodedSize() <= MaxResult {
		return r
	}
	r.Warnings = []string{"warnings left out: the result was too large"}
	if r.encodedSize() > MaxResult { // control characters are encoded in six bytes each
		r.Message = clip(r.Message, MaxMessage/4)
	}
	return r
}

func (r *Result) encodedSize() int {
	data, err := json.Marshal(r)
	if err != nil {
		return MaxResult + 1
	}
	return len(data)
}

// clip returns s as valid UTF-8 of at most limit bytes.
func clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ToValidUTF8(s[:min(limit, len(s))], "")
}

// Status is an agent's observation of a process.
type Status struct {
	At         time.Time `json:"at"`
	UTCOffset  int       `json:"utc_offset_s"`
	Running    bool      `json:"running"`
	Supervised bool      `json:"supervised"`
	Phase      string    `json:"phase,omitempty"`
	AgentID    string    `json:"agent_id,omitempty"`

	PID int `json:"pid,omitzero"`
	// PIDs are the main processes if the spec has several instances; PID is the first of them.
	PIDs          []int     `json:"pids,omitempty"`
	Instances     int       `json:"instances,omitzero"` // number of instances in the spec, if more than one
	Command       string    `json:"command,omitempty"`
	Stat          string    `json:"stat,omitempty"`
	Threads       int       `json:"threads,omitzero"`
	StartedAt     time.Time `json:"started_at,omitzero"`
	ElapsedMS     int64     `json:"elapsed_ms,omitzero"`
	UserMS        int64     `json:"user_ms,omitzero"`
	SystemMS      int64     `json:"system_ms,omitzero"`
	CPU           float64   `json:"cpu,omitzero"`         // percent of the host
	CPUAverage    float64   `json:"cpu_average,omitzero"` // percent of the host, over the life of the process
	MemoryBytes   int64     `json:"memory_bytes,omitzero"`
	MemoryPercent float64   `json:"memory_percent,omitzero"`
	HostFreeKB    int64     `json:"host_free_kb,omitzero"`
	// TreeCPU, in percent of the host, and TreeMemoryBytes include descendant
	// processes. They are set only for processes with limits.
	TreeCPU         float64 `json:"tree_cpu,omitzero"`
	TreeMemoryBytes int64   `json:"tree_memory_bytes,omitzero"`

	Version string `json:"version,omitempty"`
	Health  string `json:"health,omitempty"`

	RegisteredAt  time.Time `json:"registered_at,omitzero"`
	LastStartedAt time.Time `json:"last_started_at,omitzero"`
	Failures      int       `json:"failures,omitzero"`
	NextRetryAt   time.Time `json:"next_retry_at,omitzero"`
	NextRunAt     time.Time `json:"next_run_at,omitzero"` // next scheduled run of a periodic process
	FrozenUntil   time.Time `json:"frozen_until,omitzero"`
	// Restarts is the number of automatic restarts since the registration.
	Restarts int       `json:"restarts,omitzero"`
	LastExit *LastExit `json:"last_exit,omitempty"`
	Evidence string    `json:"evidence,omitempty"`
}

// LastExit describes the last exit of the process. For a process that is not a
// child of the agent, often only the time is known.
type LastExit struct {
	At     time.Time `json:"at"`
	Known  bool      `json:"known,omitzero"`
	Code   int       `json:"code,omitzero"`    // exit code, if Known and without Signal
	Signal string    `json:"signal,omitempty"` // for example "SIGSEGV"
	Why    string    `json:"why,omitempty"`    // for example "limit", "out of memory"
}

// Receipt is a worker's signed reply to [Results] and [Event]: it names the
// results or the event that the servers have stored durably. Its signature
// covers the id of the request.
type Receipt struct {
	Header
	// Task is the task of the [Results]. Stored lists the items whose results
	// are in the task store. Rejected lists items whose results no worker will
	// store: the task is unknown, or the item belongs to another host. The agent
	// resends the results of items in neither list.
	Task     string   `json:"task,omitempty"`
	Stored   ItemList `json:"stored,omitempty"`
	Rejected ItemList `json:"rejected,omitempty"`
	// Event is the id of the [Event] that is now in the event stream.
	Event string `json:"event,omitempty"`
	// RetryAfterMS, if positive, reports that nothing was stored because workers
	// are overloaded or a store is unavailable. The agent sends nothing to this
	// subject for that many milliseconds. With Task or Event, only these results
	// or this event were refused: the agent delays them and sends others.
	RetryAfterMS int64 `json:"retry_after_ms,omitzero"`
}

// RequestTimeout is how long agents wait for the reply of a worker before they
// resend the request. A worker replies earlier, if only with RetryAfterMS.
const RequestTimeout = 5 * time.Second

// MaxRetryAfter is the longest [Receipt.RetryAfterMS] that agents obey.
const MaxRetryAfter = time.Minute

// RetryAfter returns RetryAfterMS as a duration between 0 and [MaxRetryAfter].
func (r *Receipt) RetryAfter() time.Duration {
	ms := min(max(r.RetryAfterMS, 0), MaxRetryAfter.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// Resend requests that an agent publishes the results of items again. It is a
// request to [AgentSubject]; the reply is a [ResendReply].
type Resend struct {
	Header
	Task     string `json:"task"`
	Lane     string `json:"lane"`
	Host     string `json:"host"`
	Instance string `json:"instance,omitempty"`
	Items    []int  `json:"items"`
}

// ResendReply groups the items of a [Resend] by their state on the agent.
type ResendReply struct {
	Header
	Instance string `json:"instance"`
	// Incarnation identifies the agent process that replies.
	Incarnation string `json:"incarnation"`

	Refused string `json:"refused,omitempty"` // values as in [Reply.Refused]
	Message string `json:"message,omitempty"`
	Running []int  `json:"running,omitempty"` // accepted, not yet final
	Sent    []int  `json:"resent,omitempty"`  // final; the agent is publishing the results again
	Unknown []int  `json:"unknown,omitempty"` // never accepted by this instance
}
