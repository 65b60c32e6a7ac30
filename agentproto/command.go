package agentproto

import (
	"encoding/json"
	"time"
)

// Header is embedded in every message. Decoders verify Type first.
type Header struct {
	Type string    `json:"type"`
	ID   string    `json:"id"` // unique per message; covered by the signature of the reply
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
	TypeCancel        = "procfleet.agent.v1.cancel"
	TypeCancelReply   = "procfleet.agent.v1.cancel_reply"
	TypeOutput        = "procfleet.agent.v1.output"
	TypeOutputReply   = "procfleet.agent.v1.output_reply"

	TypeSettingsRequest = "procfleet.agent.v1.settings"
	TypeSettingsReply   = "procfleet.agent.v1.settings_reply"
	TypeSettingsChanged = "procfleet.agent.v1.settings_changed"
)

// Command requests actions on the processes of one host. A worker sends it as a
// request to [AgentSubject]. The agent sends a [Reply] once the command is in
// its journal, and the results on [ResultSubject] later.
type Command struct {
	Header
	Task string `json:"task"`
	Lane string `json:"lane"` // lane of the results: "s" or "b"
	Host string `json:"host"` // "<cloud area>:<ip>"; every other host refuses the command
	// Instance is the addressed agent instance; others refuse the whole command.
	// Empty if the sender does not know the instance.
	Instance string `json:"instance,omitempty"`
	// Incarnation is the addressed agent process; others refuse the whole
	// command. Empty if the sender does not know the incarnation.
	Incarnation string `json:"incarnation,omitempty"`
	// AcceptBefore is the server time after which the agent refuses the command.
	AcceptBefore time.Time `json:"accept_before"`
	// NotAfter is the task's deadline in server time. The agent refuses an item
	// that has not begun by then, for example because it waited for another item
	// of the same process. Zero: no limit.
	NotAfter time.Time     `json:"not_after,omitzero"`
	Items    []CommandItem `json:"items"`
	// Specs are encoded [Spec] values; items refer to them by index.
	Specs []json.RawMessage `json:"specs"`
}

// CommandItem requests one action on one process.
type CommandItem struct {
	Item   int    `json:"item"`
	Action string `json:"action"`
	Spec   int    `json:"spec"`
	// Fence is the task's number, microseconds of the servers' clock at its
	// acceptance; with Item it orders the commands of one process. Unless the
	// agent remembers the command, it refuses a fence that is not above the
	// last accepted fence of the process: the command is superseded or repeated.
	Fence int64 `json:"fence"`
}

// Spec is the process spec in commands. The sender sets every default; a zero
// field means zero.
type Spec struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name"`
	// ArgsPattern distinguishes the process from others of the same program: a
	// regular expression (RE2) that must match a part of the command line, the
	// arguments joined by single spaces. Empty matches every process.
	ArgsPattern string `json:"args_pattern,omitempty"`
	SetupPath   string `json:"setup_path,omitempty"`
	PidPath     string `json:"pid_path,omitempty"`
	ConfigPath  string `json:"config_path,omitempty"`
	LogPath     string `json:"log_path,omitempty"`
	Account     string `json:"account,omitempty"` // empty: root

	StartCmd       string            `json:"start_cmd,omitempty"`
	StopCmd        string            `json:"stop_cmd,omitempty"`
	RestartCmd     string            `json:"restart_cmd,omitempty"`
	ReloadCmd      string            `json:"reload_cmd,omitempty"`
	KillCmd        string            `json:"kill_cmd,omitempty"`
	VersionCmd     string            `json:"version_cmd,omitempty"`
	HealthCmd      string            `json:"health_cmd,omitempty"`
	Shell          string            `json:"shell,omitempty"` // sh, bat, ps1; empty: sh
	Env            map[string]string `json:"env,omitempty"`
	NoProfile      bool              `json:"no_profile,omitzero"`
	RestartInPlace bool              `json:"restart_in_place,omitzero"`
	// HealthRestart restarts the process after three consecutive failures of
	// HealthCmd; if false, failures are only reported.
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
	// StopGraceMS is the time after which a stop kills the processes that still
	// run; 0 never.
	StopGraceMS int64 `json:"stop_grace_ms,omitzero"`
}

// Reply is the reply to a [Command]. It has either one entry per item of the
// command, or Refused and no items: then no item was accepted.
type Reply struct {
	Header
	Instance string `json:"instance"`
	// Incarnation identifies the agent process that replies.
	Incarnation string `json:"incarnation"`
	// Refused is one word for the cause if the whole command was refused.
	Refused string     `json:"refused,omitempty"`
	Message string     `json:"message,omitempty"`
	Items   ReplyItems `json:"items,omitempty"`
}

// Values of [Reply.Refused].
const (
	RefusedUndecodable = "undecodable" // not a message that this agent can decode
	RefusedHost        = "host"        // addressed to another host
	RefusedInstance    = "instance"    // addressed to another instance
	RefusedIncarnation = "incarnation" // addressed to another process of this instance
	RefusedExpired     = "expired"     // AcceptBefore has passed
	RefusedStopping    = "stopping"    // the agent is shutting down; retry later
	RefusedSignature   = "signature"   // signature not verified
	RefusedJournal     = "journal"     // the journal cannot be written; retry later
)

// ReplyItem is the reply to one command item. If Result is set, the item is
// final: it was refused, or it is a repeat with a known outcome. Otherwise the
// agent has accepted the item and will send a result.
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
