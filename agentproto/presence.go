package agentproto

import (
	"time"
)

// Presence announces a live agent: on connecting, every 30 s with jitter, and
// with Leaving set on an orderly shutdown. It is sent as a request to
// [PresenceSubject]; a worker replies with a [PresenceReply] once it is stored.
// A missing reply is no error: the next announcement is sent anyway.
type Presence struct {
	Header
	Host     string `json:"host"` // "<cloud>:<ip>"
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance"` // made together with the data folder
	// Incarnation is random for each agent process. Two live ones of one
	// instance are a conflict: its data folder was copied.
	Incarnation string `json:"incarnation,omitempty"`

	Version string `json:"version"`
	OS      string `json:"os,omitempty"`
	Arch    string `json:"arch,omitempty"`
	// StartedAt is when this agent process began.
	StartedAt time.Time `json:"started_at"`
	// Types are the message types that the agent reads.
	Types      []string `json:"types,omitempty"`
	Supervised int      `json:"supervised"` // how many processes it keeps alive
	Leaving    bool     `json:"leaving,omitzero"`
	// Other is another live agent of this host, which replied just now: the two
	// are a conflict from this announcement on. Servers older than it ignore it.
	Other *AgentProcess `json:"other,omitempty"`
	// CPU and Memory are how much of the host is in use, in percent of all of it.
	CPU    float64 `json:"cpu,omitzero"`
	Memory float64 `json:"memory,omitzero"`
}

// AgentProcess names one process of an agent.
type AgentProcess struct {
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation,omitempty"` // empty of agents that have none
}

// PresenceReply has the server's time. With the round trip as
// error bound the agent learns by how much its own clock is off.
type PresenceReply struct {
	Header
	ServerTime time.Time `json:"server_time"`
	// Again says that the announcement was rejected because its Sent is too old or
	// in the future: the agent sends it again with ServerTime.
	Again bool `json:"again,omitzero"`
	// AgentIDRefused says why the agent id of the announcement is not the
	// host's; the rest of the announcement counts. Servers older than it leave
	// it out.
	AgentIDRefused string `json:"agent_id_refused,omitempty"`
}

// Processes reports every process that an agent manages: when one of them
// changed, and at intervals. It is published on [ProcessesSubject] and not
// answered: a report that is lost is followed by the next, which says all.
type Processes struct {
	Header
	Host     string `json:"host"` // "<cloud>:<ip>"
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance"`
	// Number orders the reports of a host, whatever its agents: microseconds
	// of the server's time, and always more than in the report before.
	Number    int64            `json:"number"`
	Processes ManagedProcesses `json:"processes"`
	// Omitted is how many processes did not fit into one message.
	Omitted int `json:"omitted,omitzero"`
}

// ManagedProcess is how one process stands.
type ManagedProcess struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	Desired   string `json:"desired"` // one of the words below
	// Status is what the agent saw last, without Command and Evidence.
	Status Status `json:"status"`
}

// Words of [ManagedProcess.Desired].
const (
	DesiredNone = "none" // not supervised
	DesiredUp   = "up"   // supervised
	DesiredDown = "down" // stopped or killed on purpose
)
