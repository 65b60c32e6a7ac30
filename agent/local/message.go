// Package local is the agent's query interface on its own host: a Unix socket in the data
// folder that works without a connection to the servers. The agent's user and root may use it.
//
// A client connects, writes one [Request] and reads one [Reply], both in JSON; then the
// agent closes the connection. Unknown
// fields are ignored; a message of another version is refused.
package local

import (
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// Version is the version of the messages.
const Version = 1

// Request is a query of a client.
type Request struct {
	Version int    `json:"version"`
	Query   string `json:"ask"` // query, always QueryProcesses
}

// QueryProcesses is the query for all processes that the agent knows.
const QueryProcesses = "processes"

// Reply is the reply to a [Request]. Error is set if the agent refused the query.
type Reply struct {
	Version   int       `json:"version"`
	Error     string    `json:"error,omitempty"`
	At        time.Time `json:"at"`
	Agent     Agent     `json:"agent"`
	Processes []Process `json:"processes"` // sorted: supervised processes first, then by key
}

// Agent describes the replying agent.
type Agent struct {
	Host      string    `json:"host"` // "<cloud area>:<ip>"
	AgentID   string    `json:"agent_id,omitempty"`
	Instance  string    `json:"instance"`
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	// Disconnected is the reason for the lost connection to NATS; empty while connected.
	Disconnected string `json:"away,omitempty"`
}

// Process is the state of one process.
type Process struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	Desired   string `json:"desired"` // desired state, a word of [agentproto.ManagedProcess]
	State     string `json:"state"`   // observed state, a word of [agentproto.Status.Phase]
	PID       int    `json:"pid,omitzero"`
	PIDs      []int  `json:"pids,omitempty"` // pids of a process with several instances
	// Since is the start time of the running process; if none runs, the time at which State
	// changed.
	Since    time.Time            `json:"since,omitzero"`
	Restarts int                  `json:"restarts"`
	Failures int                  `json:"failures,omitzero"` // number of consecutive failures
	LastExit *agentproto.LastExit `json:"last_exit,omitempty"`
	Limits   Limits               `json:"limits"`
	// Busy is the operation in progress; empty = none.
	Busy string `json:"busy,omitempty"`
	// GivenUp is the reason why the agent has stopped automatic starts, apart from rare
	// probes; empty while automatic starts continue.
	GivenUp string `json:"given_up,omitempty"`
	// NextAction is the agent's next automatic action, one of the constants below. NextAt
	// is its time, if known.
	NextAction string    `json:"next_action"`
	NextAt     time.Time `json:"next_at,omitzero"`
}

// Limits are the limits of a process in percent of the host; 0 = none.
type Limits struct {
	CPU    float64 `json:"cpu,omitzero"`
	Memory float64 `json:"memory,omitzero"`
}

// Words of [Process.NextAction].
const (
	NextNothing     = "nothing" // none: the process is not supervised
	NextFinish      = "finish"  // finish the operation in Busy
	NextSearch      = "look"    // observe whether the process runs
	NextWatch       = "watch"   // watch the process, and start it again if it ends
	NextStart       = "start"   // start the process at NextAt
	NextRun         = "run"     // run the periodic process at NextAt
	NextAdopt       = "adopt"   // probe at long intervals, and supervise the process if it was started externally
	NextFrozen      = "frozen"  // none until NextAt: automatic actions are frozen
	NextUnconfirmed = "held"    // none until the next operation on the process: the journal was damaged

	NextQuarantined = "quarantined" // none until the agent is restarted
)
