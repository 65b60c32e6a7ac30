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

	PID       int       `json:"pid,omitempty"` // 0 when not running
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

	Version string `json:"version,omitempty"`
	Health  string `json:"health,omitempty"`

	RegisteredAt  time.Time `json:"registered_at,omitzero"`
	LastStartedAt time.Time `json:"last_started_at,omitzero"`
	// Failures is the number of consecutive failed automatic starts, and
	// NextRetryAt when the agent will try again.
	Failures    int       `json:"failures,omitempty"`
	NextRetryAt time.Time `json:"next_retry_at,omitzero"`
	// Evidence says what the agent's view rests on where that is not obvious.
	Evidence string `json:"evidence,omitempty"`
}
