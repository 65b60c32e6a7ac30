package procfleet

import "time"

// HostEvent is an automatic action or an observation of an agent.
type HostEvent struct {
	// Sequence orders the events of all hosts.
	Sequence   uint64    `json:"sequence"`
	ReceivedAt time.Time `json:"received_at"`
	At         time.Time `json:"at"` // as well as the agent knows the server's time

	Host     Host   `json:"host"`
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance,omitempty"`
	// Kind is a word such as restarted, gave_up or limit_exceeded. Agents of
	// other releases may have other ones.
	Kind string `json:"kind"`
	// Key, Namespace, Name and ProcName name the process, PID its main process;
	// empty in an event about the host.
	Key       string `json:"key,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Message   string `json:"message"` // a sentence for people
	// Details are the figures behind the message; which ones depends on Kind.
	Details map[string]any `json:"details,omitempty"`
}
