package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints that control automatic actions and list their events.

// Freeze is the endpoint that suspends automatic starts and limit actions, or resumes
// them.
type Freeze = Codec[Freezing, Frozen]

// Freezing is a request to freeze, or with Lift to lift freezes. Its scope is each
// target; with Namespace, the processes of this namespace on each target; with Namespace
// and no targets, this namespace on every host.
type Freezing struct {
	Business  string             `json:"business,omitempty"`
	Lift      bool               `json:"lift,omitempty"`
	Namespace string             `json:"namespace,omitempty"`
	Targets   []procfleet.Target `json:"targets,omitempty"`
	// TTL and Reason are ignored with Lift. TTL is [catalog.MinFreeze] to
	// [catalog.MaxFreeze].
	TTL    procfleet.Duration `json:"ttl,omitempty"`
	Reason string             `json:"reason,omitempty"`
}

// Everywhere reports whether the request is for a namespace on all hosts.
func (q *Freezing) Everywhere() bool { return len(q.Targets) == 0 }

// Frozen is the result of a [Freezing].
type Frozen struct {
	Until    time.Time       `json:"until,omitzero"` // end of the freeze; zero if nothing was frozen
	Lifted   int             `json:"lifted,omitempty"`
	Outcomes []TargetOutcome `json:"outcomes"` // one for each target, in their order
}

// ListFreezes is the endpoint that returns a page of the freezes in effect.
type ListFreezes = Codec[FreezePage, []catalog.Freeze]

// FreezePage requests up to Limit freezes after the scope After. With the zero scope the
// page begins with the first freeze.
type FreezePage struct {
	After catalog.Scope `json:"after"`
	Limit int           `json:"limit"`
}

// ListEvents is the endpoint that returns a page of the events that agents published.
type ListEvents = Codec[EventPage, Events]

// EventPage requests up to Limit agent events with a sequence number above After, oldest
// first, beginning with the oldest for After 0. With Newest it requests the last Limit
// events, and After is ignored. Zero values of Host, Namespace, Kind and Since select
// all events.
type EventPage struct {
	Host      procfleet.Host `json:"host"`
	Namespace string         `json:"namespace,omitempty"`
	Kind      string         `json:"kind,omitempty"`
	Since     time.Time      `json:"since,omitzero"`
	After     uint64         `json:"after,omitempty"`
	Newest    bool           `json:"newest,omitempty"`
	Limit     int            `json:"limit"`
}

// Events is a page of agent events, oldest first. Next is the After of the next page.
// More means that the next page already has events.
type Events struct {
	Events []procfleet.HostEvent `json:"events"`
	Next   uint64                `json:"next"`
	More   bool                  `json:"more"`
}
