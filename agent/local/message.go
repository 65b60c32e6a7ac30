// Package local is the agent's query interface on its own host: a Unix socket in the
// data folder, open to the agent's user and root, that works without a connection to
// the servers.
//
// A client connects, writes one [Question] and reads one [Answer], both JSON; the
// agent closes the connection. New fields may be added and are ignored by older
// programs. The version is raised if an older program would misread a message.
package local

import (
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// Version is the version of the messages.
const Version = 1

// Question is a query of a client.
type Question struct {
	Version int    `json:"version"`
	Ask     string `json:"ask"` // AskProcesses
}

// AskProcesses queries all processes that the agent knows.
const AskProcesses = "processes"

// Answer is the reply to a [Question], with Error set if it was refused.
type Answer struct {
	Version   int       `json:"version"`
	Error     string    `json:"error,omitempty"`
	At        time.Time `json:"at"`
	Agent     Agent     `json:"agent"`
	Processes []Process `json:"processes"` // supervised ones first, then by key
}

// Agent describes the replying agent.
type Agent struct {
	Host      string    `json:"host"` // "<cloud>:<ip>"
	AgentID   string    `json:"agent_id,omitempty"`
	Instance  string    `json:"instance"`
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	// Disconnected is why the agent is disconnected from NATS; empty while it is connected.
	Disconnected string `json:"away,omitempty"`
}

// Process is the state of one process.
type Process struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	Desired   string `json:"desired"` // a word of [agentproto.ManagedProcess]
	State     string `json:"state"`   // a word of [agentproto.Status.Phase]
	PID       int    `json:"pid,omitzero"`
	PIDs      []int  `json:"pids,omitempty"` // if it has several instances
	// Since is when the running process started, or else when State changed.
	Since    time.Time            `json:"since,omitzero"`
	Restarts int                  `json:"restarts"`
	Failures int                  `json:"failures,omitzero"` // in a row
	LastExit *agentproto.LastExit `json:"last_exit,omitempty"`
	Limits   Limits               `json:"limits"`
	// Busy is the operation that is under way; empty if there is none.
	Busy string `json:"busy,omitempty"`
	// GivenUp is why automatic starts have ended but for rare probes; empty if they
	// have not.
	GivenUp string `json:"given_up,omitempty"`
	// NextAction is the agent's next automatic action, one of the words below, and
	// NextAt its time, if known.
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
	NextNothing = "nothing" // none: the process is not supervised
	NextFinish  = "finish"  // finish the operation in Busy
	NextLook    = "look"    // observe whether it runs
	NextWatch   = "watch"   // watch it, and start it again if it ends
	NextStart   = "start"   // start it at NextAt
	NextRun     = "run"     // run the periodic process at NextAt
	NextAdopt   = "adopt"   // none but rare probes: supervise it again after an external start
	NextFrozen  = "frozen"  // none until NextAt: automatic actions are frozen
	NextHeld    = "held"    // none until an operation on it: the journal was damaged

	NextQuarantined = "quarantined" // none until the agent is restarted
)
