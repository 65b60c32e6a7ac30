// Package local is how an agent tells those on its own host what it does: over
// a Unix socket in its data folder, which answers the file's owner and root,
// whether or not the agent reaches a server.
//
// Who asks connects, writes one [Question] and reads one [Answer], both JSON;
// the agent closes. New fields may come, which others ignore. A new version
// is for what an old program must not misread.
package local

import (
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// Version is that of the messages.
const Version = 1

// Question is what somebody wants to know.
type Question struct {
	Version int    `json:"version"`
	Ask     string `json:"ask"` // AskProcesses
}

// AskProcesses asks for every process that the agent knows.
const AskProcesses = "processes"

// Answer says how things stand, or why that is not said.
type Answer struct {
	Version   int       `json:"version"`
	Error     string    `json:"error,omitempty"`
	At        time.Time `json:"at"`
	Agent     Agent     `json:"agent"`
	Processes []Process `json:"processes"` // those that are kept alive first, each group by key
}

// Agent is the agent that answers.
type Agent struct {
	Host      string    `json:"host"` // "<cloud>:<ip>"
	AgentID   string    `json:"agent_id,omitempty"`
	Instance  string    `json:"instance"`
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	// Away says why NATS is not reached; empty while it is.
	Away string `json:"away,omitempty"`
}

// Process is how one process stands.
type Process struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	Desired   string `json:"desired"` // a word of [agentproto.ManagedProcess]
	State     string `json:"state"`   // a word of [agentproto.Status.Phase]
	PID       int    `json:"pid,omitzero"`
	PIDs      []int  `json:"pids,omitempty"` // if it has several instances
	// Since is when the process that runs began, or else when its state changed.
	Since    time.Time            `json:"since,omitzero"`
	Restarts int                  `json:"restarts"`
	Failures int                  `json:"failures,omitzero"` // in a row
	LastExit *agentproto.LastExit `json:"last_exit,omitempty"`
	Limits   Limits               `json:"limits"`
	// Busy is the operation that is under way; empty if there is none.
	Busy string `json:"busy,omitempty"`
	// GivenUp is why it is not started any more, but for rare attempts; empty
	// if it is.
	GivenUp string `json:"given_up,omitempty"`
	// NextAction is what the agent does by itself next, one of the words below,
	// and NextAt when, if that is known.
	NextAction string    `json:"next_action"`
	NextAt     time.Time `json:"next_at,omitzero"`
}

// Limits are in percent of the host; 0 is none.
type Limits struct {
	CPU    float64 `json:"cpu,omitzero"`
	Memory float64 `json:"memory,omitzero"`
}

// Words of [Process.NextAction].
const (
	NextNothing = "nothing" // it is not kept alive
	NextFinish  = "finish"  // what it is busy with
	NextLook    = "look"    // where it is, before anything else
	NextWatch   = "watch"   // it runs; should it end, it is started again
	NextStart   = "start"   // it is started again at a time
	NextRun     = "run"     // a periodic process runs at a time
	NextAdopt   = "adopt"   // it was given up: looked after again if somebody else starts it
	NextFrozen  = "frozen"  // it is not started before a time
	NextHeld    = "held"    // it is not started before an operation on it: the journal is in doubt

	NextQuarantined = "quarantined" // it is left alone until the agent is restarted
)
