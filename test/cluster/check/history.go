package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Ask is one operation of a submission: one action on one process.
type Ask struct {
	Action  procfleet.Action
	Process string // its name; the load keeps all in one namespace
	// Token is what the start command writes if it runs: nothing else has the
	// same. Empty if the action runs no start command.
	Token string
	// Stays is that the process is resident: it runs until it is stopped.
	Stays bool
	Hosts []procfleet.Host // each once
}

// Submission is one request, however often it was sent. Its key is its name.
type Submission struct {
	Key  string
	Asks []Ask
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

func (s Span) String() string {
	const layout = "15:04:05.000"
	return s.From.Format(layout) + "–" + s.Until.Format(layout)
}

// Answer is what a dispatcher said to one attempt of a submission, also if the
// client never heard it.
type Answer struct {
	Span
	Key    string
	Door   string // the dispatcher
	Status int    // of HTTP
	Task   procfleet.TaskID
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

// Mark is a line that a start command left on a host.
type Mark struct {
	Host  procfleet.Host
	Token string
	// Operation is for what the agent ran the command: "<task>/<item>", or
	// "auto" when it kept a resident process alive.
	Operation string
}

// automatic is the Operation of a start that nobody asked for.
const automatic = "auto"

// ParseMark reads a line that the load's start commands write. A line that
// cannot be read is an error: nothing else writes there.
func ParseMark(host procfleet.Host, line string) (Mark, error) {
	token, operation, ok := strings.Cut(line, " ")
	if !ok || token == "" || operation == "" {
		return Mark{}, fmt.Errorf("host %s: mark %q is not a token and an operation", host, line)
	}
	return Mark{Host: host, Token: token, Operation: operation}, nil
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
