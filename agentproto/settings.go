package agentproto

import (
	"strconv"
	"time"
)

// SettingsRequest requests the settings of a host on [SettingsSubject]. Agents send
// it at startup before they start any process, on [SettingsChanged], and every
// 8 to 12 minutes. The reply is a [SettingsReply].
type SettingsRequest struct {
	Header
	Host     string `json:"host"` // "<cloud area>:<ip>"
	Instance string `json:"instance"`
}

// SettingsReply contains all settings of a host and replaces earlier ones.
type SettingsReply struct {
	Header
	// Error is set if the settings are unavailable; the agent retains its current ones.
	Error      string    `json:"error,omitempty"`
	ServerTime time.Time `json:"server_time"`
	Settings   Settings  `json:"settings"`
}

// Settings are the server-side settings of one host.
type Settings struct {
	Freezes []Freeze `json:"freezes,omitempty"`
	Groups  []Group  `json:"groups,omitempty"`
}

// Freeze suspends automatic starts and limits until a time; requested operations
// are still executed.
type Freeze struct {
	Namespace string    `json:"namespace,omitempty"` // empty: all processes of the host
	Until     time.Time `json:"until"`               // server time
	Reason    string    `json:"reason,omitempty"`
}

// Group limits the share of a host that the processes of one namespace use.
type Group struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	// Limits are in percent of the host; 0 is no limit.
	CPULimit    float64 `json:"cpu_limit,omitzero"`
	MemoryLimit float64 `json:"memory_limit,omitzero"`
	// ByLimit prefers to kill processes with a small limit of their own.
	CPUByLimit    bool `json:"cpu_by_limit,omitzero"`
	MemoryByLimit bool `json:"memory_by_limit,omitzero"`
}

// SettingsChanged notifies agents that their settings changed, so that they
// request them: one host on its [AgentSubject], or all hosts on
// [SettingsChangedAll] after a random delay of up to 2 s. It has no reply.
type SettingsChanged struct{ Header }

// SettingsSubject returns the subject on which the agents of a cloud area request settings.
//
//	procfleet.settings.0
func SettingsSubject(cloud int64) string {
	return "procfleet.settings." + strconv.FormatInt(cloud, 10)
}

// SettingsAll matches the settings subjects of all cloud areas.
const SettingsAll = "procfleet.settings.*"

// SettingsChangedAll is the subject of [SettingsChanged] for all agents.
const SettingsChangedAll = "procfleet.settingschanged"
