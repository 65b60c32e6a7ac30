package agentproto

import (
	"strconv"
	"time"
)

// Event reports what an agent did or noticed without a command. It is a request
// to [EventSubject]; a worker verifies it, publishes it to the stream of host
// events, and replies with a [Receipt]. The agent keeps the latest events in
// memory until then.
type Event struct {
	Header
	Host     string    `json:"host"` // "<cloud>:<ip>"
	AgentID  string    `json:"agent_id,omitempty"`
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`   // server's time, as well as the agent knows it
	Kind     string    `json:"kind"` // one of the words below
	// Key, Namespace, Name and ProcName name the process; empty in an event about
	// the host.
	Key       string `json:"key,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name,omitempty"`
	PID       int    `json:"pid,omitzero"`
	Message   string `json:"message"` // a sentence for people
	// Details are the figures behind the message; which ones depends on Kind.
	Details map[string]any `json:"details,omitempty"`
	// Receipt requests a [Receipt]. Without it the agent is of an older version,
	// and expects the acknowledgement of a JetStream stream.
	Receipt bool `json:"receipt,omitzero"`
}

// Kinds of an [Event] that is about a process.
const (
	EventRestarted        = "restarted"         // it had ended and was started again
	EventGaveUp           = "gave_up"           // no more automatic starts, or only rare ones
	EventAdopted          = "adopted"           // it was started externally and is supervised
	EventPIDChanged       = "pid_changed"       // a successor replaced it
	EventTwoMasters       = "two_masters"       // the pid file names another process while the known one lives
	EventLimitExceeded    = "limit_exceeded"    // it, or its group, was over a limit and was killed
	EventInstancesMissing = "instances_missing" // fewer of its instances run than its spec wants
	EventHealthFailed     = "health_failed"     // its health command failed several times in a row
	EventFrozen           = "frozen"            // it is stopped by a signal
	EventUncertain        = "uncertain"         // its state cannot be observed
	EventOverlap          = "overlap"           // periodic runs were left out because one takes longer than its period
	EventRunsFailed       = "runs_failed"       // a periodic process failed several times in a row
	EventQuarantined      = "quarantined"       // the agent failed on it repeatedly and does not touch it
	EventCommandHanging   = "command_hanging"   // a command of it could not be ended
)

// Kinds of an [Event] that is about the host.
const (
	EventJournalDamaged = "journal_damaged" // part of the journal could not be read
	EventJournalFull    = "journal_full"    // the journal cannot be written
	EventStartsPaused   = "starts_paused"   // the host cannot run another process; automatic starts wait
	EventStarved        = "starved"         // the agent did not run for a while
	EventUnsafeHost     = "unsafe_host"     // a setting of this host endangers its processes
	EventTwoAgents      = "two_agents"      // another agent takes commands for this host
	EventCopiedFolder   = "copied_folder"   // the data folder was copied or restored; the agent began anew

	// Workers publish these two about a host.
	EventAgentIDRefused  = "agent_id_refused"  // it claims an agent id that its identity does not hold
	EventAgentIDConflict = "agent_id_conflict" // it and other hosts claim one agent id
)

// EventSubject is where the agents of a cloud area send events to workers.
//
//	procfleet.event.0
func EventSubject(cloud int64) string {
	return "procfleet.event." + strconv.FormatInt(cloud, 10)
}

// EventsAll matches every cloud area's subject of events.
const EventsAll = "procfleet.event.*"
