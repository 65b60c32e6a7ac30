package agentproto

import (
	"encoding/json"
	"time"
)

// Header opens every message. Decoders check Type before anything else.
type Header struct {
	Type string    `json:"type"`
	ID   string    `json:"id"` // unique per message; the signature of its reply covers it
	Sent time.Time `json:"sent"`
}

// Message types.
const (
	TypeCommand       = "procfleet.agent.v1.command"
	TypeReply         = "procfleet.agent.v1.reply"
	TypeResults       = "procfleet.agent.v1.results"
	TypeReceipt       = "procfleet.agent.v1.receipt"
	TypeResend        = "procfleet.agent.v1.resend"
	TypeResendReply   = "procfleet.agent.v1.resend_reply"
	TypePresence      = "procfleet.agent.v1.presence"
	TypePresenceReply = "procfleet.agent.v1.presence_reply"
	TypeProcesses     = "procfleet.agent.v1.processes"
	TypeEvent         = "procfleet.agent.v1.event"

	TypeSettingsAsk     = "procfleet.agent.v1.settings"
	TypeSettingsReply   = "procfleet.agent.v1.settings_reply"
	TypeSettingsChanged = "procfleet.agent.v1.settings_changed"
)

// Command asks the agent of one host to act on processes. It is sent as a
// request to [AgentSubject] and answered with a [Reply] as soon as the agent
// has journalled it; results follow on [ResultSubject].
type Command struct {
	Header
	Task string `json:"task"`
	Lane string `json:"lane"` // of the results: "s" or "b"
	Host string `json:"host"` // "<cloud>:<ip>"; another host refuses
	// Instance is the agent instance that is meant; another one refuses the
	// whole command. Empty if the sender does not know the instance.
	Instance string `json:"instance,omitempty"`
	// Incarnation is the agent process that is meant; another one refuses the
	// whole command. Empty if the sender does not know it.
	Incarnation string `json:"incarnation,omitempty"`
	// AcceptBefore is server time; later the agent must not accept.
	AcceptBefore time.Time `json:"accept_before"`
	// NotAfter is server time: the task's deadline. An item that has not begun
	// by then, say because it waited for another one of its process, is refused
	// and not carried out. Zero: items wait as long as it takes.
	NotAfter time.Time     `json:"not_after,omitzero"`
	Items    []CommandItem `json:"items"`
	// Specs are encoded [Spec] values; items name them by index.
	Specs []json.RawMessage `json:"specs"`
}

// CommandItem is one action on one process.
type CommandItem struct {
	Item   int    `json:"item"`
	Action string `json:"action"`
	Spec   int    `json:"spec"`
	// Fence is the task's number, microseconds of the servers' clock at its
	// acceptance; with Item it orders commands for one process. A command that
	// the agent does not remember, and that is not above the last one for its
	// process, is refused: it is superseded or a repeat.
	Fence int64 `json:"fence"`
}

// Spec is a process spec as agents know it. The sender fills in every
// default; a zero field means zero.
type Spec struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	// ArgsPattern distinguishes the process from others of the same program: a
	// regular expression (RE2) that its command line, the arguments joined by
	// single spaces, must match somewhere. Empty matches all. Agents older than
	// it ignore it.
	ArgsPattern string `json:"args_pattern,omitempty"`
	SetupPath   string `json:"setup_path,omitempty"`
	PidPath     string `json:"pid_path,omitempty"`
	ConfigPath  string `json:"config_path,omitempty"`
	LogPath     string `json:"log_path,omitempty"`
	Account     string `json:"account,omitempty"` // empty is root

	StartCmd       string            `json:"start_cmd,omitempty"`
	StopCmd        string            `json:"stop_cmd,omitempty"`
	RestartCmd     string            `json:"restart_cmd,omitempty"`
	ReloadCmd      string            `json:"reload_cmd,omitempty"`
	KillCmd        string            `json:"kill_cmd,omitempty"`
	VersionCmd     string            `json:"version_cmd,omitempty"`
	HealthCmd      string            `json:"health_cmd,omitempty"`
	Shell          string            `json:"shell,omitempty"` // sh, bat, ps1; empty is sh
	Env            map[string]string `json:"env,omitempty"`
	NoProfile      bool              `json:"no_profile,omitzero"`
	RestartInPlace bool              `json:"restart_in_place,omitzero"`
	// HealthRestart lets three failures of HealthCmd in a row end and start the
	// process again; without, they are only reported.
	HealthRestart bool `json:"health_restart,omitzero"`

	Type              string  `json:"process_type"` // resident, once, manual, periodic
	OpTimeoutMS       int64   `json:"op_timeout_ms"`
	StartCheckBeginMS int64   `json:"start_check_begin_ms"`
	StartCheckEndMS   int64   `json:"start_check_end_ms"`
	StopCheckMS       int64   `json:"stop_check_ms"`
	StartRetries      int     `json:"start_retries"`
	StartIntervalMS   int64   `json:"start_interval_ms"`
	CycleTimeMS       int64   `json:"cycle_time_ms,omitzero"`
	Crontab           string  `json:"crontab,omitempty"`
	Instances         int     `json:"instances,omitzero"`
	CPULimit          float64 `json:"cpu_limit,omitzero"` // percent of the host
	MemoryLimit       float64 `json:"memory_limit,omitzero"`
}

// Reply answers a [Command]. It has one entry per item of the command, or
// Refused set and no items: then nothing of the command was accepted.
type Reply struct {
	Header
	Instance string `json:"instance"`
	// Incarnation is the agent process that replies.
	Incarnation string `json:"incarnation,omitempty"`
	// Refused says in one word why the whole command was rejected.
	Refused string     `json:"refused,omitempty"`
	Message string     `json:"message,omitempty"`
	Items   ReplyItems `json:"items,omitempty"`
}

// Words of [Reply.Refused].
const (
	RefusedUndecodable = "undecodable" // not a message this agent reads
	RefusedHost        = "host"        // meant for another host
	RefusedInstance    = "instance"    // meant for another instance
	RefusedIncarnation = "incarnation" // meant for another process of this instance
	RefusedExpired     = "expired"     // accept_before has passed
	RefusedStopping    = "stopping"    // the agent is shutting down; try again
	RefusedSignature   = "signature"   // not verified as from a server of this fleet
)

// ReplyItem says what became of one command item. With Result set the item
// is over: it was refused, or it is a repeat whose outcome is known.
// Otherwise the agent has accepted it and will send a result.
type ReplyItem struct {
	Item   int     `json:"item"`
	Result *Result `json:"result,omitempty"`
}

// Actions of a [CommandItem].
const (
	ActionStart     = "start"
	ActionStop      = "stop"
	ActionStatus    = "status"
	ActionSupervise = "supervise"
	ActionRelease   = "release"
	ActionRestart   = "restart"
	ActionReload    = "reload"
	ActionKill      = "kill"
)
