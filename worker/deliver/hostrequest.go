package deliver

import (
	"cmp"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

// hostRequest is the state of one host of a chunk: the items without reply and the time
// of the next request. All times are store time.
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
	name    string // host in text form
	subject string

	todo []int // open items, indexes into the chunk, in request order
	part int   // size of the current part: leading todo items that one command requests

	instance string // instance of the last announcement; empty if the agent never announced itself
	// incarnation identifies the agent process that last announced itself; empty if no
	// announcement is fresh or several agents claim the host. If another process
	// receives the command from the queue group, it refuses the command.
	incarnation string
	since       time.Time
	fresh       bool // the agent's presence has not expired
	conflict    bool

	try              int       // number of the current request, from 1
	firstSent        time.Time // time of the first request for this part; zero before it
	sentAt           time.Time // time of the current request
	acceptBefore     time.Time
	again            time.Time // time of the next request
	noReplies        int       // consecutive requests without any reply
	rejected         error     // verification error of the last unverified reply; nil if there was none
	unreplied        bool      // some request of this part had no reply, so the agent may have accepted the command
	unavailableSince time.Time // first "no responders" or stopping of this part; restarts do not extend the grace
	noResponders     int       // consecutive "no responders"
	refusals         int
	grace            bool // an agent was present or reported that it stops, so an agent may reconnect
}

func newHostRequest(index int, host procfleet.Host) *hostRequest {
	return &hostRequest{
		index: index, host: host, name: host.String(),
		subject: agentproto.AgentSubject(int64(host.Cloud), host.Addr),
	}
}

func (h *hostRequest) settled() bool { return len(h.todo) == 0 }

// wakeSlack batches requests: a host due within wakeSlack counts as due now.
const wakeSlack = 20 * time.Millisecond

func (h *hostRequest) due(now time.Time) bool { return h.again.Before(now.Add(wakeSlack)) }

// observe copies the presence p of the host's agent and reports whether a new instance
// has replaced the instance that received requests.
func (h *hostRequest) observe(p *taskstore.Presence) (replaced bool) {
	h.fresh = !p.Host.IsZero()
	h.conflict = p.Conflict
	h.incarnation = ""
	if !h.fresh {
		return false // keep the old instance: a retry is meant for it
	}
	if h.instance == "" { // no request was sent, or requests named no instance
		replaced = !h.firstSent.IsZero() && p.Since.After(h.firstSent)
	} else {
		replaced = p.Instance != h.instance
	}
	h.instance, h.incarnation, h.since = p.Instance, p.Incarnation, p.Since
	if h.conflict {
		h.instance, h.incarnation = "", "" // either claimant may reply to a status request
	}
	return replaced
}

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

func (h *hostRequest) exhausted(now time.Time, t *Timing) bool {
	return h.noReplies > len(t.Again) && !now.Before(h.acceptBefore.Add(t.AcceptMargin))
}

// hadNoResponders records that a request had no responders and reports whether to send
// another, at h.again. reconnected is when this worker last reconnected to the broker;
// zero if never.
func (h *hostRequest) hadNoResponders(now, reconnected time.Time, t *Timing) bool {
	h.noReplies = 0
	h.noResponders++
	h.unavailableSince = cmp.Or(h.unavailableSince, now)
	// The grace must not depend on the current presence: an agent that restarts cleanly
	// removes its presence first.
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

// maxRefusals is the number of temporary refusals after which the items fail.
const maxRefusals = 5

// wasRefused records a refusal of the whole command and reports whether to retry at
// h.again.
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
		// Either the agent was restarted and will announce itself, or a copy of the
		// agent runs. A copy becomes a conflict once both have announced themselves.
		h.unavailableSince = cmp.Or(h.unavailableSince, now)
		h.again = now.Add(t.RefusedAgain)
		return now.Before(h.unavailableSince.Add(t.Grace))
	case agentproto.RefusedExpired, agentproto.RefusedInstance, agentproto.RefusedSignature:
		h.again = now.Add(time.Duration(h.refusals) * t.RefusedAgain)
		return h.refusals < maxRefusals
	}
	return false
}

// replied removes an item from the current part and reports whether it was contained.
func (h *hostRequest) replied(item int) bool {
	at := slices.Index(h.todo[:h.part], item)
	if at < 0 {
		return false
	}
	h.todo = slices.Delete(h.todo, at, at+1)
	h.part--
	return true
}

func (h *hostRequest) nextPart() {
	h.noReplies, h.noResponders, h.refusals = 0, 0, 0
	h.unreplied, h.grace = false, false
	h.firstSent, h.unavailableSince = time.Time{}, time.Time{}
}

// Timing holds the durations of requests to agents. A zero field means its default.
type Timing struct {
	// AcceptWindow is the time from a request to its accept_before; default and maximum
	// [MaxAcceptWindow].
	AcceptWindow time.Duration
	// AcceptMargin is how long after accept_before a reply may still arrive before the
	// host counts as unreachable; default 500 ms.
	AcceptMargin time.Duration
	// Again holds the pauses after the first and the second request without reply;
	// default 2 s and 3 s.
	Again [2]time.Duration
	// NoResponderAgain is the pause before the only retry for a host without presence
	// that has no responders; default 1 s.
	NoResponderAgain time.Duration
	// RefusedAgain is the pause after a temporary refusal, such as expired or another
	// instance; it grows linearly with each. Default 250 ms.
	RefusedAgain time.Duration
	// Grace is how long requests are retried for a host with a fresh presence but no
	// responders; default 45 s. ReconnectGrace is how long requests are retried for any
	// host after this worker reconnected; default 30 s. GraceAgain is the retry
	// interval during both; default 2 s.
	Grace, ReconnectGrace, GraceAgain time.Duration
	// ParkAfter is the time without replies after which a chunk is parked; default 150
	// ms. Postpone is the delay of a chunk that exceeds the limit of parked chunks; it
	// doubles each time. Default 2 s.
	ParkAfter, Postpone time.Duration
}

// MaxAcceptWindow bounds the age of a command that a host accepts: a host resumed from
// suspension must not run old commands.
const MaxAcceptWindow = 10 * time.Second

// WithDefaults returns t with every zero field set to its default.
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
