package check

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Ask is one operation of a submission: one action on one process.
type Ask struct {
	Action  procfleet.Action
	Process string // its name; the load keeps all in one namespace
	// Token is what the commands of the operation write if they run: no other
	// operation has the same. Empty if the action runs no command, and on light
	// agents, which run none.
	Token string
	// Stays is that the process is resident: it runs until it is stopped.
	Stays bool
	Hosts []procfleet.Host // each once
}

// Submission is one request, however often it was sent. Its key is its name.
type Submission struct {
	Key  string
	Asks []Ask
	// At is when it was first sent, and Timeout that of its task.
	At      time.Time
	Timeout time.Duration
	// Keyless is that it is sent once and without an idempotency key. Its key is
	// then only its business, by which its task is found in a list. It may have
	// no task, and then none of its commands may have run.
	Keyless bool
	// Callback is that a callback was requested for the end of the task.
	Callback bool
	// Task is the task that the client was given in the end; empty if it never
	// came to an answer, and then Err says why.
	Task procfleet.TaskID
	Err  error
}

// items is the number of processes on hosts that were asked for.
func (s *Submission) items() int {
	n := 0
	for _, a := range s.Asks {
		n += len(a.Hosts)
	}
	return n
}

// Span is a stretch of time by the clock of the test.
type Span struct{ From, Until time.Time }

// touches is whether two spans have a moment in common.
func (s Span) touches(o Span) bool { return !s.From.After(o.Until) && !o.From.After(s.Until) }

// clockLayout shows moments.
const clockLayout = "15:04:05.000"

func (s Span) String() string {
	return s.From.Format(clockLayout) + "–" + s.Until.Format(clockLayout)
}

// Answer is what a dispatcher said to one attempt of a submission, also if the
// client never heard it.
type Answer struct {
	Span
	Key    string
	Door   string // the dispatcher
	Status int    // of HTTP
	Task   procfleet.TaskID
	Code   string // of a failure, as the API has it
	Text   string // of a failure
}

// Look is one reading of a task's counters. Those of one task follow one
// another: each was asked for after the answer to the one before.
type Look struct {
	Span
	Door    string
	Missing bool // the dispatcher said that there is no such task
	Task    client.Task
}

func (l *Look) String() string {
	if l.Missing {
		return fmt.Sprintf("%s at %s: no such task", l.Span, l.Door)
	}
	return fmt.Sprintf("%s at %s: %s, %s", l.Span, l.Door, l.Task.State, countsText(l.Task.Counts))
}

// countsText has the states that have items, in the order of the API.
func countsText(counts procfleet.Counts) string {
	var parts []string
	for _, s := range procfleet.States() {
		if n := counts[s]; n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// Reading is one reading of all results of a task; those of one task follow
// one another as its looks do.
type Reading struct {
	Span
	Door    string
	Results []client.Result
	// Last is that the task was done, and everything healed, when it was read.
	Last bool
}

// Mark is a line that a control command left on a host. The marks of one host
// are in the order in which its commands ran.
type Mark struct {
	Host    procfleet.Host
	Token   string
	Process string
	Verb    Verb
	// Operation is for what the agent ran the command: "<task>/<item>", or
	// "auto" when it kept a resident process alive.
	Operation string
	// At is when the command ran, by a clock that no fault sets.
	At time.Time
}

// Verb is what a control command does.
type Verb string

// The verbs.
const (
	VerbStart  Verb = "start"
	VerbStop   Verb = "stop"
	VerbReload Verb = "reload"
	VerbKill   Verb = "kill"
)

// automatic is the Operation of a start that the agent decided on.
const automatic = "auto"

// booted is when this machine came up: the containers of a fleet share its
// kernel, and so the time since then.
var booted = sync.OnceValues(func() (time.Time, error) {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	since, _, _ := strings.Cut(string(data), " ")
	return sinceBoot(time.Now(), since, -1)
})

// sinceBoot adds to a time, or subtracts from it, what /proc/uptime has.
func sinceBoot(t time.Time, seconds string, sign float64) (time.Time, error) {
	since, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time since boot: %w", err)
	}
	return t.Add(time.Duration(sign * since * float64(time.Second))), nil
}

// ParseMark reads a line that the load's control commands write: token,
// process, verb, operation, and the host's seconds since boot. A line that
// cannot be read is an error: nothing else writes there.
func ParseMark(host procfleet.Host, line string) (Mark, error) {
	words := strings.Fields(line)
	if len(words) != 5 {
		return Mark{}, fmt.Errorf("host %s: mark %q is not a token, a process, a verb, an operation and a time", host, line)
	}
	boot, err := booted()
	if err != nil {
		return Mark{}, err
	}
	at, err := sinceBoot(boot, words[4], +1)
	if err != nil {
		return Mark{}, fmt.Errorf("host %s: mark %q: %w", host, line, err)
	}
	return Mark{Host: host, Token: words[0], Process: words[1], Verb: Verb(words[2]), Operation: words[3], At: at}, nil
}

// Loss is when a host lost something, at any moment of the span.
type Loss struct {
	Span
	Host procfleet.Host
}

// Notice is one notification of the end of a task.
type Notice struct {
	// At, Key, Header and Status are of callbacks alone: when it came, the
	// submission that requested it, its Idempotency-Key, and its answer.
	At          time.Time
	Key, Header string
	Status      int
	Event       string // the id
	Task        procfleet.TaskID
	State       procfleet.TaskState
	Counts      procfleet.Counts
}

// Standing is whether a resident process runs when everything has settled, as
// its agent says when it is asked for its status.
type Standing struct {
	Process string
	Host    procfleet.Host
	Running bool
	// Unknown is what the agent's answer was if it was no status.
	Unknown string
	At      time.Time
}

// History is all that was seen of a fleet from outside.
type History struct {
	// Run is the business of its tasks, and what its tokens begin with; others
	// use the fleet too.
	Run         string
	Submissions []*Submission
	Answers     []Answer
	Looks       map[procfleet.TaskID][]Look
	Readings    map[procfleet.TaskID][]Reading
	// Tasks are all that the API lists in the end.
	Tasks     []client.Task
	Standings []Standing
	// Callbacks are those that were received, and Events those that the broker
	// has. Nil Events were not read.
	Callbacks, Events []Notice
	// Deaths are when every process of a host ended at once and without a
	// command, as in a power failure.
	Deaths []Loss
	// Wipes are when the agent of a host lost what it had stored, with the
	// results that no worker had acknowledged and its registrations.
	Wipes []Loss
	// Failovers are the times in which the store could fail over, from a few
	// seconds before the fault until everything had healed.
	Failovers []Span
}

// forgiven is whether what was seen first may be gone later, because the store
// may have failed over in between.
func (h *History) forgiven(first, later Span) bool {
	return slices.ContainsFunc(h.Failovers, func(f Span) bool {
		// What was there long before the fault had been confirmed.
		return !first.Until.Before(f.From) && f.touches(Span{first.From, later.Until})
	})
}

// wiped reports whether an agent lost what it had stored after some time.
func (h *History) wiped(host procfleet.Host, after time.Time) bool {
	return slices.ContainsFunc(h.Wipes, func(w Loss) bool { return w.Host == host && w.Until.After(after) })
}

// byTask returns the submissions that came to a task.
func (h *History) byTask() map[procfleet.TaskID]*Submission {
	found := map[procfleet.TaskID]*Submission{}
	for _, s := range h.Submissions {
		if s.Task != "" {
			found[s.Task] = s
		}
	}
	return found
}

// last is the last reading of a task, nil if there is none.
func (h *History) last(task procfleet.TaskID) *Reading {
	all := h.Readings[task]
	if len(all) == 0 || !all[len(all)-1].Last {
		return nil
	}
	return &all[len(all)-1]
}
