package agentproto

import (
	"strconv"
	"time"
)

// SettingsAsk asks what holds for a host, as a request to [SettingsSubject].
// Agents ask when they start, before they start anything by themselves; when
// they are told that something changed; and every 10 minutes, give or take a
// fifth. It is answered with a [SettingsReply].
type SettingsAsk struct {
	Header
	Host     string `json:"host"` // "<cloud>:<ip>"
	Instance string `json:"instance"`
}

// SettingsReply carries everything that holds for a host; what it leaves out
// does not hold any more.
type SettingsReply struct {
	Header
	// Error says why nothing is known just now; the agent keeps what it has.
	Error      string    `json:"error,omitempty"`
	ServerTime time.Time `json:"server_time"`
	Settings   Settings  `json:"settings"`
}

// Settings are what the server wants of a host beside operations.
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

// SettingsChanged tells agents that their settings changed, so that they ask
// for them: one host on its [AgentSubject], or all on [SettingsChangedAll],
// where each waits a random time of up to 2 s first. It is not answered.
type SettingsChanged struct{ Header }

// SettingsSubject is where the agents of a cloud area ask for their settings.
//
//	procfleet.settings.0
func SettingsSubject(cloud int64) string {
	return "procfleet.settings." + strconv.FormatInt(cloud, 10)
}

// SettingsAll matches every cloud area's subject of settings.
const SettingsAll = "procfleet.settings.*"

// SettingsChangedAll is where every agent is told that settings changed.
const SettingsChangedAll = "procfleet.settingschanged"
