package procfleet

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// CloudArea is a network zone. An address is unique only within its cloud
// area. Zero is the default area; negative values are invalid.
type CloudArea int64

// Host is a managed machine, identified by one address in one cloud area. The
// zero Host means "no host". Two Hosts are the same machine exactly if they are
// ==, because [NewHost] and [ParseHost] return canonical addresses.
type Host struct {
	Cloud CloudArea
	Addr  netip.Addr
}

// NewHost returns the host with the given IPv4 or IPv6 address. An IPv4 address
// in IPv6 form (::ffff:10.0.0.1) yields the IPv4 host. Addresses with a zone,
// unspecified and multicast addresses are rejected.
func NewHost(cloud CloudArea, ip string) (Host, error) {
	if cloud < 0 {
		return Host{}, fmt.Errorf("cloud area %d is negative", cloud)
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return Host{}, fmt.Errorf("%q is neither an IPv4 nor an IPv6 address", clip(ip))
	}
	addr = addr.Unmap()
	switch {
	case addr.Zone() != "":
		return Host{}, fmt.Errorf("address %q has a zone; give it without", clip(ip))
	case addr.IsUnspecified(), addr.IsMulticast():
		return Host{}, fmt.Errorf("address %q is not the address of one host", clip(ip))
	}
	return Host{Cloud: cloud, Addr: addr}, nil
}

// ParseHost parses the format of [Host.String], "<cloud area>:<ip>", for example
// "0:10.0.0.1" or "3:fd00::1".
func ParseHost(s string) (Host, error) {
	area, ip, ok := strings.Cut(s, ":")
	if !ok {
		return Host{}, fmt.Errorf("host %q is not of the form <cloud area>:<ip>, for example 0:10.0.0.1", clip(s))
	}
	n, err := strconv.ParseInt(area, 10, 64)
	if err != nil {
		return Host{}, fmt.Errorf("host %q: cloud area %q is not a number; the form is <cloud area>:<ip>, for example 0:10.0.0.1", clip(s), clip(area))
	}
	h, err := NewHost(CloudArea(n), ip)
	if err != nil {
		return Host{}, fmt.Errorf("host %q: %w", clip(s), err)
	}
	return h, nil
}

// IsZero reports whether h is the zero Host.
func (h Host) IsZero() bool { return h == Host{} }

// String formats the host as "<cloud area>:<ip>", and the zero Host as "".
func (h Host) String() string {
	return string(h.append(make([]byte, 0, 24)))
}

func (h Host) append(b []byte) []byte {
	if h.IsZero() {
		return b
	}
	b = append(strconv.AppendInt(b, int64(h.Cloud), 10), ':')
	return h.Addr.AppendTo(b)
}

// MarshalText encodes the host as [Host.String] does.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText decodes the format of [ParseHost]; empty text is the zero Host.
func (h *Host) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*h = Host{}
		return nil
	}
	parsed, err := ParseHost(string(text))
	if err != nil {
		return err
	}
	*h = parsed
	return nil
}

// Target is a host as a caller named it. Host is zero if the caller named an
// agent id that no agent has announced, or neither an address nor an agent id;
// the item of such a target ends as unreachable.
type Target struct {
	Host Host `json:"h,omitzero"`
	// AgentID is the agent id that the caller gave, if any.
	AgentID string `json:"i,omitempty"`
	// Label is the caller's spelling of the host, for dialects whose responses
	// repeat it. If empty, responses contain Host.String().
	Label string `json:"l,omitempty"`
}

// Key returns the caller's spelling of the host: Label, or Host.String().
func (t Target) Key() string {
	if t.Label != "" {
		return t.Label
	}
	return t.Host.String()
}

// AppendKey appends the result of [Target.Key] to b.
func (t Target) AppendKey(b []byte) []byte {
	if t.Label != "" {
		return append(b, t.Label...)
	}
	return t.Host.append(b)
}

// clip shortens caller-supplied text, quoted in an error message, to 80 bytes.
func clip(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// HostEvent is an automatic action or an observation of an agent.
type HostEvent struct {
	// Sequence is the position in the order of the events of all hosts.
	Sequence   uint64    `json:"sequence"`
	ReceivedAt time.Time `json:"received_at"`
	At         time.Time `json:"at"` // agent's estimate of the server's time

	Host     Host   `json:"host"`
	AgentID  string `json:"agent_id,omitempty"`
	Instance string `json:"instance,omitempty"`
	// Kind is one word, such as restarted, gave_up or limit_exceeded. Agents of
	// other releases may send kinds that this release does not know.
	Kind string `json:"kind"`
	// Key, Namespace, Name and ProcName identify the process, PID is its main
	// process; all are empty in an event about the host.
	Key       string `json:"key,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ProcName  string `json:"proc_name,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Message   string `json:"message"` // human-readable sentence
	// Details are the values behind Message; the names depend on Kind.
	Details map[string]any `json:"details,omitempty"`
}
