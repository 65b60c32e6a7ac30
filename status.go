package procfleet

import "time"

// ProcessStatus is what an agent saw of a process, in the agent's own terms.
type ProcessStatus struct {
	// At is when the agent looked, and UTCOffset the host's time zone then,
	// in seconds east of UTC.
	At        time.Time `json:"at"`
	UTCOffset int       `json:"utc_offset_s"`

	Running    bool `json:"running"`
	Supervised bool `json:"supervised"`
	// Phase is the agent's state of the process: stopped, starting, running,
	// stopping, backoff, fatal, …
	Phase   string `json:"phase,omitempty"`
	AgentID string `json:"agent_id,omitempty"`

	PID int `json:"pid,omitempty"` // 0 when not running
	// PIDs are the main processes of all instances if the spec has several; PID is the first.
	PIDs      []int     `json:"pids,omitempty"`
	Instances int       `json:"instances,omitempty"` // how many the spec wants, if several
	Command   string    `json:"command,omitempty"`
	Stat      string    `json:"stat,omitempty"` // R, S, D, T, …
	Threads   int       `json:"threads,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	ElapsedMS int64     `json:"elapsed_ms,omitempty"`
	UserMS    int64     `json:"user_ms,omitempty"`
	SystemMS  int64     `json:"system_ms,omitempty"`
	// CPU shares are percent of the whole host; the average is over the
	// life of the process.
	CPU        float64 `json:"cpu,omitempty"`
	CPUAverage float64 `json:"cpu_average,omitempty"`
	// Memory is the resident set, in bytes and in percent of the host's.
	MemoryBytes   int64   `json:"memory_bytes,omitempty"`
	MemoryPercent float64 `json:"memory_percent,omitempty"`
	// HostFreeKB is the memory that the host has available, in KiB.
	HostFreeKB int64 `json:"host_free_kb,omitempty"`
	// TreeCPU, in percent of the host, and TreeMemoryBytes count descendants
	// too; only for processes that have limits.
	TreeCPU         float64 `json:"tree_cpu,omitempty"`
	TreeMemoryBytes int64   `json:"tree_memory_bytes,omitempty"`

	Version string `json:"version,omitempty"`
	Health  string `json:"health,omitempty"`

	RegisteredAt  time.Time `json:"registered_at,omitzero"`
	LastStartedAt time.Time `json:"last_started_at,omitzero"`
	// Failures is the number of consecutive failed automatic starts, and
	// NextRetryAt when the agent will try again.
	Failures    int       `json:"failures,omitempty"`
	NextRetryAt time.Time `json:"next_retry_at,omitzero"`
	NextRunAt   time.Time `json:"next_run_at,omitzero"` // of a periodic process
	// FrozenUntil is when automatic starts and limits are no longer suspended.
	FrozenUntil time.Time `json:"frozen_until,omitzero"`
	// Restarts is how often it was started to keep it alive since it was
	// registered.
	Restarts int       `json:"restarts,omitempty"`
	LastExit *LastExit `json:"last_exit,omitempty"`
	// Evidence says what the agent's view rests on where that is not obvious.
	Evidence string `json:"evidence,omitempty"`
}

// LastExit is how a process ended last, as far as the agent can know: of one
// that is not its child usually only when.
type LastExit struct {
	At     time.Time `json:"at"`
	Known  bool      `json:"known,omitempty"`  // whether Code or Signal is
	Code   int       `json:"code,omitempty"`   // without a Signal
	Signal string    `json:"signal,omitempty"` // for example "SIGSEGV"
	Why    string    `json:"why,omitempty"`    // for example "limit", "out of memory"
}
