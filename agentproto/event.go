package agentproto

import (
	"strconv"
	"time"
)

// Event reports an automatic action or an observation of an agent. The agent
// sends it as a request to [EventSubject]; a worker verifies it, publishes it to
// the stream of host events, and replies with a [Receipt]. Until then the agent
// retains its latest events in memory.
type Event struct {
	Header
	Host     string    `json:"host"` // "<cloud area>:<ip>"
	AgentID  string    `json:"agent_id,omitempty"`
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`   // agent's estimate of the server's time
	Kind     string    `json:"kind"` // one of the constants below
	// Key, Namespace, Name and ProcName identify the process; empty in an event
	// about the host.
	Key       string `json:"key,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name,omitempty"`
	PID       int    `json:"pid,omitzero"`
	Message   string `json:"message"` // human-readable sentence
	// Details are the values behind Message; the names depend on Kind.
	Details map[string]any `json:"details,omitempty"`
}

// Kinds of events about a process.
const (
	EventRestarted        = "restarted"         // the process exited and was restarted
	EventGaveUp           = "gave_up"           // automatic starts ended, or became rare
	EventAdopted          = "adopted"           // the process was started externally and is now supervised
	EventPIDChanged       = "pid_changed"       // a successor process replaced the process
	EventTwoMasters       = "two_masters"       // the pid file names another process although the known process lives
	EventLimitExceeded    = "limit_exceeded"    // the process or its group exceeded a limit and was killed
	EventInstancesMissing = "instances_missing" // fewer instances run than the spec requires
	EventHealthFailed     = "health_failed"     // the health command failed several times in a row
	EventFrozen           = "frozen"            // the process is stopped by a signal
	EventUncertain        = "uncertain"         // the state of the process cannot be observed
	EventOverlap          = "overlap"           // periodic runs were skipped: a run takes longer than the period
	EventRunsFailed       = "runs_failed"       // a periodic process failed several times in a row
	EventQuarantined      = "quarantined"       // the agent failed on the process repeatedly and no longer touches it
	EventCommandHanging   = "command_hanging"   // a control command could not be killed
)

// Kinds of events about the host.
const (
	EventJournalDamaged = "journal_damaged" // part of the journal could not be read
	EventJournalFull    = "journal_full"    // the journal cannot be written
	EventStartsPaused   = "starts_paused"   // the host cannot run another process; automatic starts are suspended
	EventStarved        = "starved"         // the agent process did not run for a while, for example on an overloaded host
	EventUnsafeHost     = "unsafe_host"     // a setting of the host endangers its processes
	EventTwoAgents      = "two_agents"      // another agent receives commands for this host
	EventCopiedFolder   = "copied_folder"   // the data folder was copied or restored; the agent started a new instance

	// Published by workers.
	EventAgentIDRefused  = "agent_id_refused"  // the host claims an agent id that its identity does not include
	EventAgentIDConflict = "agent_id_conflict" // several hosts claim the same agent id
)

// EventSubject returns the subject to which the agents of a cloud area send events.
//
//	procfleet.event.0
func EventSubject(cloud int64) string {
	return "procfleet.event." + strconv.FormatInt(cloud, 10)
}

// EventsAll matches the event subjects of all cloud areas.
const EventsAll = "procfleet.event.*"
