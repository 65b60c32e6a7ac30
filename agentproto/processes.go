package agentproto

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
