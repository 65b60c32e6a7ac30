package procfleet

import "time"

// ProcessStatus is an agent's observation of a process, in the agent's terms.
type ProcessStatus struct {
	// At is the time of the observation, UTCOffset the offset of the host's
	// local time from UTC at that moment, in seconds east.
	At        time.Time `json:"at"`
	UTCOffset int       `json:"utc_offset_s"`

	Running    bool `json:"running"`
	Supervised bool `json:"supervised"`
	// Phase is the agent's state of the process: stopped, starting, running,
	// stopping, backoff, fatal, …
	Phase   string `json:"phase,omitempty"`
	AgentID string `json:"agent_id,omitempty"`

	PID int `json:"pid,omitempty"` // 0: not running
	// PIDs are the main processes if the spec has several instances; PID is the first of them.
	PIDs      []int     `json:"pids,omitempty"`
	Instances int       `json:"instances,omitempty"` // number of instances in the spec, if more than one
	Command   string    `json:"command,omitempty"`
	Stat      string    `json:"stat,omitempty"` // process state letter: R, S, D, T, …
	Threads   int       `json:"threads,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	ElapsedMS int64     `json:"elapsed_ms,omitempty"`
	UserMS    int64     `json:"user_ms,omitempty"`
	SystemMS  int64     `json:"system_ms,omitempty"`
	// CPU and CPUAverage are percentages of the whole host. CPUAverage covers
	// the life of the process.
	CPU        float64 `json:"cpu,omitempty"`
	CPUAverage float64 `json:"cpu_average,omitempty"`
	// MemoryBytes is the resident set, MemoryPercent its share of host memory.
	MemoryBytes   int64   `json:"memory_bytes,omitempty"`
	MemoryPercent float64 `json:"memory_percent,omitempty"`
	// HostFreeKB is the available memory of the host in KiB.
	HostFreeKB int64 `json:"host_free_kb,omitempty"`
	// TreeCPU, in percent of the host, and TreeMemoryBytes include descendant
	// processes. They are set only for processes with limits.
	TreeCPU         float64 `json:"tree_cpu,omitempty"`
	TreeMemoryBytes int64   `json:"tree_memory_bytes,omitempty"`

	Version string `json:"version,omitempty"`
	Health  string `json:"health,omitempty"`

	RegisteredAt  time.Time `json:"registered_at,omitzero"`
	LastStartedAt time.Time `json:"last_started_at,omitzero"`
	// Failures is the number of consecutive failed automatic starts,
	// NextRetryAt the time of the next attempt.
	Failures    int       `json:"failures,omitempty"`
	NextRetryAt time.Time `json:"next_retry_at,omitzero"`
	NextRunAt   time.Time `json:"next_run_at,omitzero"` // next scheduled run of a periodic process
	// FrozenUntil is the end of the current freeze.
	FrozenUntil time.Time `json:"frozen_until,omitzero"`
	// Restarts is the number of automatic restarts since the process was
	// registered.
	Restarts int       `json:"restarts,omitempty"`
	LastExit *LastExit `json:"last_exit,omitempty"`
	// Evidence explains the agent's conclusion if it is not obvious.
	Evidence string `json:"evidence,omitempty"`
}

// LastExit describes the last exit of a process. For a process that is not a
// child of the agent, often only the time is known.
type LastExit struct {
	At     time.Time `json:"at"`
	Known  bool      `json:"known,omitempty"`  // Code or Signal is known
	Code   int       `json:"code,omitempty"`   // exit code; meaningless with a Signal
	Signal string    `json:"signal,omitempty"` // for example "SIGSEGV"
	Why    string    `json:"why,omitempty"`    // for example "limit", "out of memory"
}
