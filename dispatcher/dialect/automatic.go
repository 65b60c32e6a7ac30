package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of automatic actions: freezes, and the events of agents.

// Freeze suspends automatic starts and limits, or resumes them.
type Freeze = Codec[Freezing, Frozen]

// Freezing freezes the targets, or a namespace on them, or lifts the freezes;
// without targets the namespace everywhere.
type Freezing struct {
	Business  string             `json:"business,omitempty"`
	Lift      bool               `json:"lift,omitempty"`
	Namespace string             `json:"namespace,omitempty"`
	Targets   []procfleet.Target `json:"targets,omitempty"`
	// TTL and Reason are not used to lift a freeze.
	TTL    procfleet.Duration `json:"ttl,omitempty"`
	Reason string             `json:"reason,omitempty"`
}

// Everywhere reports whether it freezes a namespace on all hosts.
func (q *Freezing) Everywhere() bool { return len(q.Targets) == 0 }

// Frozen is the result of a [Freezing].
type Frozen struct {
	Until    time.Time       `json:"until,omitzero"` // zero if nothing was frozen
	Lifted   int             `json:"lifted,omitempty"`
	Outcomes []TargetOutcome `json:"outcomes"` // of each target
}

// ListFreezes returns a page of the freezes.
type ListFreezes = Codec[FreezePage, []catalog.Freeze]

// FreezePage asks for up to Limit freezes after the given one; zero begins.
type FreezePage struct {
	After catalog.Scope `json:"after"`
	Limit int           `json:"limit"`
}

// ListEvents returns a page of the events that agents published.
type ListEvents = Codec[EventPage, Events]

// EventPage asks for up to Limit events behind After, from the beginning with
// 0; or for the newest. The zero fields select all.
type EventPage struct {
	Host      procfleet.Host `json:"host"`
	Namespace string         `json:"namespace,omitempty"`
	Kind      string         `json:"kind,omitempty"`
	Since     time.Time      `json:"since,omitzero"`
	After     uint64         `json:"after,omitempty"`
	Newest    bool           `json:"newest,omitempty"`
	Limit     int            `json:"limit"`
}

// Events are a page, the oldest first. Next is the After of the next one, and
// More says that it can be read at once.
type Events struct {
	Events []procfleet.HostEvent `json:"events"`
	Next   uint64                `json:"next"`
	More   bool                  `json:"more"`
}
