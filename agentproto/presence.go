package agentproto

import (
	"time"
)

// Presence announces a live agent: on connecting, every 30 s with jitter, and
// with Leaving set on an orderly shutdown. The agent sends it as a request to
// [PresenceSubject]; a worker stores it and replies with a [PresenceReply].
// A missing reply is no error: the agent sends its next announcement on schedule.
type Presence struct {
	Header
	Host     string `json:"host"` // "<cloud area>:<ip>"
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance"` // random id, created with the data folder
	// Incarnation is random for each agent process. Two live incarnations of one
	// instance are a conflict: the data folder was copied.
	Incarnation string `json:"incarnation"`

	Version string `json:"version"`
	OS      string `json:"os,omitempty"`
	Arch    string `json:"arch,omitempty"`
	// Labels are the labels of the host that the agent was started with, and its facts in
	// addition to the fields above: kernel.
	Labels map[string]string `json:"labels,omitempty"`
	// StartedAt is the start time of this agent process.
	StartedAt  time.Time `json:"started_at"`
	Supervised int       `json:"supervised"` // number of supervised processes
	Leaving    bool      `json:"leaving,omitzero"`
	// Other is another live agent of this host that has just replied: the two
	// agents are in conflict from now on.
	Other *AgentProcess `json:"other,omitempty"`
	// CPU and Memory are the used share of the whole host, in percent.
	CPU    float64 `json:"cpu,omitzero"`
	Memory float64 `json:"memory,omitzero"`
}

// AgentProcess identifies one process of an agent.
type AgentProcess struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"`
}

// PresenceReply contains the server's time. The agent computes the offset of its
// clock from it; the round-trip time bounds the error.
type PresenceReply struct {
	Header
	ServerTime time.Time `json:"server_time"`
	// Again reports that the announcement was rejected because its Sent is too
	// old or in the future: the agent repeats it with ServerTime.
	Again bool `json:"again,omitzero"`
	// AgentIDRefused is the cause if the worker rejected the announced agent id
	// and stored the rest of the announcement.
	AgentIDRefused string `json:"agent_id_refused,omitempty"`
}

// Processes reports every process that an agent manages, after each change and
// at intervals. Agents publish it on [ProcessesSubject]. A lost report needs no
// repetition: the next report is complete again. If results wait for the report, the
// agent sends it as a request, and a worker replies with a [Receipt] once the report
// is stored, so that no query is older than a result.
type Processes struct {
	Header
	Host     string `json:"host"` // "<cloud area>:<ip>"
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance"`
	// Number orders the reports of a host, across all its agents: microseconds of
	// the server's time, strictly increasing.
	Number    int64            `json:"number"`
	Processes ManagedProcesses `json:"processes"`
	// Omitted is the number of processes that did not fit into one message.
	Omitted int `json:"omitted,omitzero"`
}

// ManagedProcess is the state of one process.
type ManagedProcess struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	Desired   string `json:"desired"` // one of the constants below
	// Status is the last observation, without Command and Evidence.
	Status Status `json:"status"`
}

// Values of [ManagedProcess.Desired].
const (
	DesiredNone = "none" // not supervised
	DesiredUp   = "up"   // supervised
	DesiredDown = "down" // stopped or killed on request
)
