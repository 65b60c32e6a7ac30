package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

// hostAsk is where one host of a chunk stands: which items it still has to
// answer for, and when it is asked next. All moments are store time.
//
//	ask ──accepted or results──► next part ──none left──► settled
//	 │ ▲
//	 │ ├──silence──── after 2 s and 5 s; unreachable once the last accept_before is over
//	 │ ├──nobody───── once more after 1 s, or every 2 s while there is grace; then unreachable
//	 │ └──refused──── expired, stopping, instance, signature: again; host, undecodable: failed
//	 └──conflict, reinstalled──► the mutating items end
type hostAsk struct {
	index   int
	host    procfleet.Host
	name    string // host as text
	subject string

	todo []int // open items, indexes into the chunk, in request order
	part int   // how many of todo are in the current command

	instance string // last one heard of; empty if none ever was
	// incarnation is the process of that instance that announced itself last;
	// empty while none is fresh or several claim the host. A command that
	// another process takes from the queue group is refused there.
	incarnation string
	since       time.Time
	fresh       bool // an agent announced itself lately
	conflict    bool

	try          int       // number of the current request
	firstAsked   time.Time // when this part was first sent; zero before
	askedAt      time.Time // when the current request was sent
	acceptBefore time.Time
	again        time.Time // when to look at this host again
	quiet        int       // requests in a row without any answer
	disbelieved  error     // why the last answer that was not believed was not; nil if all were
	unanswered   bool      // some request of this part had no answer: it may have been taken
	nobodySince  time.Time // first "no responders" or stopping of this part
	nobody       int       // "no responders" in a row
	refusals     int
	grace        bool // there was an agent lately, or it said that it goes away: one may come back
}

func newHostAsk(index int, host procfleet.Host) *hostAsk {
	return &hostAsk{
		index: index, host: host, name: host.String(),
		subject: agentproto.AgentSubject(int64(host.Cloud), host.Addr),
	}
}

func (h *hostAsk) settled() bool { return len(h.todo) == 0 }

// wakeSlack lets hosts that are due within it share one round.
const wakeSlack = 20 * time.Millisecond

func (h *hostAsk) due(now time.Time) bool { return h.again.Before(now.Add(wakeSlack)) }

// seen takes what the store knows of the host's agent and reports whether a
// new instance took the place of the one that was asked.
func (h *hostAsk) seen(p *taskstore.Presence) (replaced bool) {
	h.fresh = !p.Host.IsZero()
	h.conflict = p.Conflict
	h.incarnation = ""
	if !h.fresh {
		return false // a retry still goes to the instance first asked
	}
	if h.instance == "" { // it was asked without a name, or not yet
		replaced = !h.firstAsked.IsZero() && p.Since.After(h.firstAsked)
	} else {
		replaced = p.Instance != h.instance
	}
	h.instance, h.incarnation, h.since = p.Instance, p.Incarnation, p.Since
	if h.conflict {
		h.instance, h.incarnation = "", "" // whichever of the two gets a status request may answer it
	}
	return replaced
}

// asked notes a request that was sent.
func (h *hostAsk) asked(now, acceptBefore time.Time, t *AskTiming) {
	h.askedAt, h.acceptBefore = now, acceptBefore
	if h.firstAsked.IsZero() {
		h.firstAsked = now
	}
	h.quiet++
	if h.quiet <= len(t.Again) {
		h.again = now.Add(t.Again[h.quiet-1])
		return
	}
	h.again = acceptBefore.Add(t.AcceptMargin)
}

// silent reports whether the host was asked as often as it is and all of the
// requests are past their accept_before.
func (h *hostAsk) silent(now time.Time, t *AskTiming) bool {
	return h.quiet > len(t.Again) && !now.Before(h.acceptBefore.Add(t.AcceptMargin))
}

// hadNobody notes that nobody listened and reports whether to ask again, at
// h.again. reconnected is when this worker itself last came back to the bus.
func (h *hostAsk) hadNobody(now, reconnected time.Time, t *AskTiming) bool {
	h.quiet = 0
	h.nobody++
	h.troubled(now)
	// Once there was an agent, its presence may end: one that restarts in good
	// order says that it leaves.
	h.grace = h.grace || h.fresh
	var until time.Time
	if h.grace {
		until = h.nobodySince.Add(t.Grace)
	}
	if !reconnected.IsZero() {
		until = later(until, reconnected.Add(t.ReconnectGrace))
	}
	switch {
	case now.Before(until):
		h.again = now.Add(min(t.GraceAgain, until.Sub(now)))
	case h.nobody == 1:
		h.again = now.Add(t.NobodyAgain)
	default:
		return false
	}
	return true
}

// troubled begins the grace, which an agent that comes and goes does not
// begin anew.
func (h *hostAsk) troubled(now time.Time) {
	if h.nobodySince.IsZero() {
		h.nobodySince = now
	}
}

// maxRefusals is how often a refusal that may pass is taken before it counts.
const maxRefusals = 5

// wasRefused notes a refusal of the whole command and reports whether to ask
// again, at h.again.
func (h *hostAsk) wasRefused(word string, now time.Time, t *AskTiming) bool {
	h.quiet, h.nobody = 0, 0
	h.refusals++
	switch word {
	case agentproto.RefusedStopping:
		h.troubled(now)
		h.grace = true
		h.again = now.Add(min(t.GraceAgain, t.NobodyAgain))
		return now.Before(h.nobodySince.Add(t.Grace))
	case agentproto.RefusedIncarnation:
		// The agent was restarted and is about to announce itself, or a copy of
		// it runs, which makes a conflict once both were heard of.
		h.troubled(now)
		h.again = now.Add(t.RefusedAgain)
		return now.Before(h.nobodySince.Add(t.Grace))
	case agentproto.RefusedExpired, agentproto.RefusedInstance, agentproto.RefusedSignature:
		h.again = now.Add(time.Duration(h.refusals) * t.RefusedAgain)
		return h.refusals < maxRefusals
	}
	return false
}

// answered takes an item out of the current part and reports whether it was
// there.
func (h *hostAsk) answered(item int) bool {
	at := slices.Index(h.todo[:h.part], item)
	if at < 0 {
		return false
	}
	h.todo = slices.Delete(h.todo, at, at+1)
	h.part--
	return true
}

// nextPart forgets the troubles of the part before.
func (h *hostAsk) nextPart() {
	h.quiet, h.nobody, h.refusals = 0, 0, 0
	h.unanswered, h.grace = false, false
	h.firstAsked, h.nobodySince = time.Time{}, time.Time{}
}

// Messages of results that the server makes: which host, what was tried, what
// to do.

func unknownTarget(t *procfleet.Target) string {
	if t.AgentID != "" {
		return fmt.Sprintf("no agent with id %q has announced itself: check the id, or start the agent on its host", cut(t.AgentID, maxWord))
	}
	return "neither an address nor an agent id was given for this item: name the host"
}

func (h *hostAsk) nobodyMessage(now time.Time, t *AskTiming) string {
	if waited := now.Sub(h.nobodySince); waited > 2*t.NobodyAgain {
		return fmt.Sprintf("no agent of host %s is connected; asked %d times in %v: check procfleet-agent on the host and its way to NATS",
			h.name, h.nobody, waited.Round(time.Second))
	}
	return fmt.Sprintf("no agent of host %s is connected; asked twice: start procfleet-agent on the host", h.name)
}

func (h *hostAsk) silentMessage() string {
	if h.disbelieved != nil {
		return fmt.Sprintf("agent of host %s answers, but it is not believed: %v; %s", h.name, h.disbelieved, remedy(h.disbelieved))
	}
	return fmt.Sprintf("agent of host %s is connected but did not answer %d requests: look whether the host hangs, then repeat", h.name, h.quiet)
}

func (h *hostAsk) refusedMessage(word, message string) string {
	text := fmt.Sprintf("agent of host %s refused the command (%s)", h.name, cut(word, maxWord))
	if message != "" {
		text += ": " + message
	}
	switch word {
	case agentproto.RefusedExpired:
		text += "; it arrived too late every time: check the host's clock and its way to NATS"
	case agentproto.RefusedIncarnation:
		text += "; another process of this agent answers than the one that is announced: see that no copy of its data folder is in use"
	case agentproto.RefusedInstance:
		text += "; another agent instance answers than the one that is announced: see that one agent runs on the host"
	case agentproto.RefusedSignature:
		text += "; it does not believe that the command is from this fleet: enroll the host again"
	}
	return text
}

func (h *hostAsk) conflictMessage() string {
	return fmt.Sprintf("two agents claim host %s: stop one; if one is a copy, give it an identity and an empty data folder of its own", h.name)
}

func (h *hostAsk) reinstalledMessage() string {
	return fmt.Sprintf("agent of host %s was reinstalled, outcome unknown: look with a status, then repeat if needed", h.name)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
