package deliver

import (
	"cmp"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

// hostRequest is the state of one host of a chunk: the items without reply, and
// when the next request is due. All moments are store time.
//
//	request ──accepted or results──► next part ──none left──► settled
//	 │ ▲
//	 │ ├──no reply────── after 2 s and 5 s; unreachable once the last accept_before has passed
//	 │ ├──no responders─ once more after 1 s, or every 2 s during the grace; then unreachable
//	 │ └──refused─────── expired, stopping, instance, signature: again; host, undecodable: failed
//	 └──conflict, reinstalled──► the mutating items end
type hostRequest struct {
	index   int
	host    procfleet.Host
	name    string // host as text
	subject string

	todo []int // open items, indexes into the chunk, in request order
	part int   // how many of todo are in the current command

	instance string // last one announced; empty if none ever was
	// incarnation is the process of that instance that announced itself last;
	// empty while none is fresh or several claim the host. Another process that
	// receives the command from the queue group refuses it.
	incarnation string
	since       time.Time
	fresh       bool // an agent announced itself lately
	conflict    bool

	try              int       // number of the current request
	firstSent        time.Time // when this part was first sent; zero before
	sentAt           time.Time // when the current request was sent
	acceptBefore     time.Time
	again            time.Time // when the next request is due
	noReplies        int       // requests in a row without any reply
	rejected         error     // why the last unverified reply was rejected; nil if there was none
	unreplied        bool      // some request of this part had no reply: the agent may have accepted it
	unavailableSince time.Time // first "no responders" or stopping of this part; repeated restarts do not extend the grace
	noResponders     int       // "no responders" in a row
	refusals         int
	grace            bool // there was an agent lately, or it reported that it stops: one may come back
}

func newHostRequest(index int, host procfleet.Host) *hostRequest {
	return &hostRequest{
		index: index, host: host, name: host.String(),
		subject: agentproto.AgentSubject(int64(host.Cloud), host.Addr),
	}
}

func (h *hostRequest) settled() bool { return len(h.todo) == 0 }

// wakeSlack lets hosts that are due within it share one round.
const wakeSlack = 20 * time.Millisecond

func (h *hostRequest) due(now time.Time) bool { return h.again.Before(now.Add(wakeSlack)) }

// observe takes over the presence of the host's agent and reports whether another
// instance replaced the one that got requests.
func (h *hostRequest) observe(p *taskstore.Presence) (replaced bool) {
	h.fresh = !p.Host.IsZero()
	h.conflict = p.Conflict
	h.incarnation = ""
	if !h.fresh {
		return false // a retry is still for the first instance
	}
	if h.instance == "" { // requests named no instance, or none was sent yet
		replaced = !h.firstSent.IsZero() && p.Since.After(h.firstSent)
	} else {
		replaced = p.Instance != h.instance
	}
	h.instance, h.incarnation, h.since = p.Instance, p.Incarnation, p.Since
	if h.conflict {
		h.instance, h.incarnation = "", "" // either of the two may reply to a status request
	}
	return replaced
}

// sent records a request that was sent.
func (h *hostRequest) sent(now, acceptBefore time.Time, t *Timing) {
	h.sentAt, h.acceptBefore = now, acceptBefore
	h.firstSent = cmp.Or(h.firstSent, now)
	h.noReplies++
	if h.noReplies <= len(t.Again) {
		h.again = now.Add(t.Again[h.noReplies-1])
		return
	}
	h.again = acceptBefore.Add(t.AcceptMargin)
}

// exhausted reports whether all requests were sent, none had a reply, and the
// accept_before of each has passed.
func (h *hostRequest) exhausted(now time.Time, t *Timing) bool {
	return h.noReplies > len(t.Again) && !now.Before(h.acceptBefore.Add(t.AcceptMargin))
}

// hadNoResponders records that a request had no responders and reports whether to
// send another, at h.again. reconnected is when this worker itself last reconnected
// to the broker.
func (h *hostRequest) hadNoResponders(now, reconnected time.Time, t *Timing) bool {
	h.noReplies = 0
	h.noResponders++
	h.unavailableSince = cmp.Or(h.unavailableSince, now)
	// The grace outlasts the presence: an agent that restarts in good order
	// announces that it leaves.
	h.grace = h.grace || h.fresh
	var until time.Time
	if h.grace {
		until = h.unavailableSince.Add(t.Grace)
	}
	if end := reconnected.Add(t.ReconnectGrace); !reconnected.IsZero() && end.After(until) {
		until = end
	}
	switch {
	case now.Before(until):
		h.again = now.Add(min(t.GraceAgain, until.Sub(now)))
	case h.noResponders == 1:
		h.again = now.Add(t.NoResponderAgain)
	default:
		return false
	}
	return true
}

// maxRefusals is how often a temporary refusal is retried.
const maxRefusals = 5

// wasRefused records a refusal of the whole command and reports whether to send
// another request, at h.again.
func (h *hostRequest) wasRefused(reason string, now time.Time, t *Timing) bool {
	h.noReplies, h.noResponders = 0, 0
	h.refusals++
	switch reason {
	case agentproto.RefusedStopping:
		h.unavailableSince = cmp.Or(h.unavailableSince, now)
		h.grace = true
		h.again = now.Add(min(t.GraceAgain, t.NoResponderAgain))
		return now.Before(h.unavailableSince.Add(t.Grace))
	case agentproto.RefusedIncarnation:
		// The agent was restarted and will announce itself, or a copy of it runs,
		// which becomes a conflict once both have announced themselves.
		h.unavailableSince = cmp.Or(h.unavailableSince, now)
		h.again = now.Add(t.RefusedAgain)
		return now.Before(h.unavailableSince.Add(t.Grace))
	case agentproto.RefusedExpired, agentproto.RefusedInstance, agentproto.RefusedSignature:
		h.again = now.Add(time.Duration(h.refusals) * t.RefusedAgain)
		return h.refusals < maxRefusals
	}
	return false
}

// replied removes an item from the current part and reports whether it was in it.
func (h *hostRequest) replied(item int) bool {
	at := slices.Index(h.todo[:h.part], item)
	if at < 0 {
		return false
	}
	h.todo = slices.Delete(h.todo, at, at+1)
	h.part--
	return true
}

// nextPart resets what concerns the part before.
func (h *hostRequest) nextPart() {
	h.noReplies, h.noResponders, h.refusals = 0, 0, 0
	h.unreplied, h.grace = false, false
	h.firstSent, h.unavailableSince = time.Time{}, time.Time{}
}

// Timing is how commands are requested of agents and repeated. A zero field is the
// default.
type Timing struct {
	// AcceptWindow is how far in the future accept_before lies; default and most
	// [MaxAcceptWindow].
	AcceptWindow time.Duration
	// AcceptMargin is how long after accept_before a reply is still awaited
	// before no reply counts as unreachable; default 500 ms.
	AcceptMargin time.Duration
	// Again are the pauses after the first and the second request without reply;
	// default 2 s and 3 s.
	Again [2]time.Duration
	// NoResponderAgain is the pause before the one more request that a host without
	// presence gets; default 1 s.
	NoResponderAgain time.Duration
	// RefusedAgain is the pause after a temporary refusal (expired, another
	// instance), growing with each; default 250 ms.
	RefusedAgain time.Duration
	// Grace is how long a host whose presence is fresh may have no responders;
	// default 45 s. ReconnectGrace is the same for every host, counted from this
	// worker's own reconnection; default 30 s. During both the host gets a request
	// every GraceAgain; default 2 s.
	Grace, ReconnectGrace, GraceAgain time.Duration
	// ParkAfter is how long after the last reply of its hosts a chunk is parked;
	// default 150 ms. Postpone is how long a chunk waits in the queue that exceeds
	// the limit of its area, longer each time; default 2 s.
	ParkAfter, Postpone time.Duration
}

// MaxAcceptWindow keeps a host that was suspended from running yesterday's commands.
const MaxAcceptWindow = 10 * time.Second

// WithDefaults returns t with every zero field set.
func (t Timing) WithDefaults() Timing {
	const ms, s = time.Millisecond, time.Second
	return Timing{
		AcceptWindow:     cmp.Or(t.AcceptWindow, MaxAcceptWindow),
		AcceptMargin:     cmp.Or(t.AcceptMargin, 500*ms),
		Again:            [2]time.Duration{cmp.Or(t.Again[0], 2*s), cmp.Or(t.Again[1], 3*s)},
		NoResponderAgain: cmp.Or(t.NoResponderAgain, s),
		RefusedAgain:     cmp.Or(t.RefusedAgain, 250*ms),
		Grace:            cmp.Or(t.Grace, 45*s),
		ReconnectGrace:   cmp.Or(t.ReconnectGrace, 30*s),
		GraceAgain:       cmp.Or(t.GraceAgain, 2*s),
		ParkAfter:        cmp.Or(t.ParkAfter, 150*ms),
		Postpone:         cmp.Or(t.Postpone, 2*s),
	}
}
