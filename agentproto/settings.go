package agentproto

import (
	"strconv"
	"time"
)

// SettingsAsk requests the settings of a host on [SettingsSubject]. Agents send
// it when they start, before they start any process; on [SettingsChanged]; and
// every 10 minutes, give or take a fifth. The reply is a [SettingsReply].
type SettingsAsk struct {
	Header
	Host     string `json:"host"` // "<cloud>:<ip>"
	Instance string `json:"instance"`
}

// SettingsReply has all settings of a host and replaces its earlier ones.
type SettingsReply struct {
	Header
	// Error says why the settings are unavailable; the agent keeps the ones it has.
	Error      string    `json:"error,omitempty"`
	ServerTime time.Time `json:"server_time"`
	Settings   Settings  `json:"settings"`
}

// Settings are the server's settings for one host.
type Settings struct {
	Freezes []Freeze `json:"freezes,omitempty"`
	Groups  []Group  `json:"groups,omitempty"`
}

// Freeze suspends automatic starts and limits until a time; operations are
// carried out all the same.
type Freeze struct {
	Namespace string    `json:"namespace,omitempty"` // empty: all processes of the host
	Until     time.Time `json:"until"`               // server's time
	Reason    string    `json:"reason,omitempty"`
}

// Group shares a part of the host among the processes of one namespace.
type Group struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	// Limits are in percent of the host; 0 is no limit.
	CPULimit    float64 `json:"cpu_limit,omitzero"`
	MemoryLimit float64 `json:"memory_limit,omitzero"`
	// With ByLimit a process with a large limit of its own is spared longer.
	CPUByLimit    bool `json:"cpu_by_limit,omitzero"`
	MemoryByLimit bool `json:"memory_by_limit,omitzero"`
}

// SettingsChanged notifies agents that their settings changed, so that they
// request them: one host on its [AgentSubject], or all on [SettingsChangedAll],
// where each waits a random time of up to 2 s first. It has no reply.
type SettingsChanged struct{ Header }

// SettingsSubject is where the agents of a cloud area request their settings.
//
//	procfleet.settings.0
func SettingsSubject(cloud int64) string {
	return "procfleet.settings." + strconv.FormatInt(cloud, 10)
}

// SettingsAll matches every cloud area's subject of settings.
const SettingsAll = "procfleet.settings.*"

// SettingsChangedAll is where every agent is notified that settings changed.
const SettingsChangedAll = "procfleet.settingschanged"
