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

// Operation is one operation of a submission: one action on one process.
type Operation struct {
	Action  procfleet.Action
	Process string // its name; all processes of a load share a namespace
	// Token identifies the operation in the marks of its commands. It is empty if
	// the action runs no command, and for simulated agents, which run none.
	Token string
	// Stays states that the process is resident: it runs until it is stopped.
	Stays bool
	Hosts []procfleet.Host // without duplicates
}

// Submission is one request with all its repeats. Its key is its name.
type Submission struct {
	Key        string
	Operations []Operation
	// At is the time of the first attempt, and Timeout the timeout of its task.
	At      time.Time
	Timeout time.Duration
	// Keyless states that the submission was sent once and without an idempotency
	// key. Key is then only its business, by which the load finds its task in the
	// list. It may have no task; then none of its commands may have run.
	Keyless bool
	// Window, if not 0, makes the task a rollout with at most this number of hosts at work.
	Window int
	// Zones limits the hosts of a rollout that are at work in each cloud area, or the number of areas.
	Zones procfleet.HostZones
	// Ramp states that the rollout has three stages.
	Ramp bool
	// Budget states that the rollout tolerates no failed host, and is canceled after the first one.
	Budget bool
	// Queue, if not 0, makes the task a rollout whose operations wait so long for hosts without an
	// agent. Coalesce cancels waiting operations that a later task replaces.
	Queue    time.Duration
	Coalesce bool
	// Callback states that it requested a callback for the end of the task.
	Callback bool
	// Task is the id that the client got in the end. If the client got none, it is
	// empty and Err gives the reason.
	Task procfleet.TaskID
	Err  error
}

// items returns the number of pairs of process and host.
func (s *Submission) items() int {
	n := 0
	for _, a := range s.Operations {
		n += len(a.Hosts)
	}
	return n
}

// Span is a period of time by the clock of the test.
type Span struct{ From, Until time.Time }

// touches reports whether two spans have a moment in common.
func (s Span) touches(o Span) bool { return !s.From.After(o.Until) && !o.From.After(s.Until) }

// clockLayout is the layout of times in texts.
const clockLayout = "15:04:05.000"

func (s Span) String() string {
	return s.From.Format(clockLayout) + "–" + s.Until.Format(clockLayout)
}

// Response is a dispatcher's response to one attempt of a submission, even if the
// client did not receive it.
type Response struct {
	Span
	Key        string
	Dispatcher string // URL of the dispatcher
	Status     int    // HTTP status
	Task       procfleet.TaskID
	Code       string // error code of a failure
	Text       string // message of a failure
}

// TaskPoll is one poll of a task's counters. The polls of one task are sequential: each
// began after the response to the previous one.
type TaskPoll struct {
	Span
	Dispatcher string
	Missing    bool // the dispatcher responded that the task does not exist
	Task       client.Task
}

func (l *TaskPoll) String() string {
	if l.Missing {
		return fmt.Sprintf("%s at %s: no such task", l.Span, l.Dispatcher)
	}
	return fmt.Sprintf("%s at %s: %s, %s", l.Span, l.Dispatcher, l.Task.State, countsText(l.Task.Counts))
}

// countsText lists the states that have items, in the order of the API.
func countsText(counts procfleet.Counts) string {
	var parts []string
	for _, s := range procfleet.States() {
		if n := counts[s]; n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// ResultsPoll is one poll of all results of a task. The readings of one task are
// sequential, like its polls of counters.
type ResultsPoll struct {
	Span
	Dispatcher string
	Results    []client.Result
	// Last states that the task was done and all faults had ended before the
	// reading.
	Last bool
}

// Mark is a line that a control command wrote on a host. The marks of one host are
// in the order of its commands.
type Mark struct {
	Host    procfleet.Host
	Token   string
	Process string
	Verb    Verb
	// Operation is the operation for which the agent ran the command:
	// "<task>/<item>", or "auto" for an automatic start.
	Operation string
	// At is the time of the command by a clock that no fault changes.
	At time.Time
}

// Verb is the kind of a control command.
type Verb string

// Verbs.
const (
	VerbStart  Verb = "start"
	VerbStop   Verb = "stop"
	VerbReload Verb = "reload"
	VerbKill   Verb = "kill"
)

// automatic is the Operation of an automatic start.
const automatic = "auto"

// booted is the boot time of this machine. The containers of a fleet share its
// kernel, and therefore the time since then.
var booted = sync.OnceValues(func() (time.Time, error) {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	since, _, _ := strings.Cut(string(data), " ")
	return sinceBoot(time.Now(), since, -1)
})

// sinceBoot adds an uptime of /proc/uptime to a time, or subtracts it.
func sinceBoot(t time.Time, seconds string, sign float64) (time.Time, error) {
	since, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time since boot: %w", err)
	}
	return t.Add(time.Duration(sign * since * float64(time.Second))), nil
}

// ParseMark parses a line that the load's control commands write: token, process,
// verb, operation, and the host's seconds since boot. An invalid line is an error,
// because no other program writes into the file.
func ParseMark(host procfleet.Host, line string) (Mark, error) {
	words := strings.Fields(line)
	if len(words) != 5 {
		return Mark{}, fmt.Errorf("host %s: mark %q does not consist of token, process, verb, operation and time", host, line)
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

// Loss is a loss of a host at an unknown moment of the span.
type Loss struct {
	Span
	Host procfleet.Host
}

// Notification is one notification of the end of a task.
type Notification struct {
	// At, Key, Header and Status are set for callbacks only: time of receipt,
	// submission that requested the callback, its Idempotency-Key, and the status
	// of the receiver's response.
	At          time.Time
	Key, Header string
	Status      int
	Event       string // event id
	Task        procfleet.TaskID
	State       procfleet.TaskState
	Counts      procfleet.Counts
}

// FinalState is the final state of a resident process according to a status of its
// agent.
type FinalState struct {
	Process string
	Host    procfleet.Host
	Running bool
	// Unknown is the result if it was no status.
	Unknown string
	At      time.Time
}

// History is the record of a fleet from outside.
type History struct {
	// Run is the business of the load's tasks and the prefix of its tokens, because
	// other loads use the same fleet.
	Run          string
	Submissions  []*Submission
	Responses    []Response
	TaskPolls    map[procfleet.TaskID][]TaskPoll
	ResultsPolls map[procfleet.TaskID][]ResultsPoll
	// Tasks is the final list of tasks in the API.
	Tasks       []client.Task
	FinalStates []FinalState
	// Callbacks were received, and Events are in the broker. Nil Events were not
	// read.
	Callbacks, Events []Notification
	// Numbers are those of the events of transitions and ends in the broker, in their order.
	Numbers map[procfleet.TaskID][]int
	// Delivered are the numbers of the events that a webhook has sent, in the order of their first
	// receipt, and Unverified the problems of requests whose signatures are not valid. Nil Delivered
	// means that there is no webhook.
	Delivered  map[procfleet.TaskID][]int
	Unverified []string
	// Deaths are the times at which every process of a host ended at once without a
	// command, as in a power failure.
	Deaths []Loss
	// Wipes are the times at which the agent of a host lost its stored data: its
	// registrations, and the results that no worker had acknowledged.
	Wipes []Loss
	// Failovers are the periods in which the store could fail over: from a few
	// seconds before the fault until all faults had ended.
	Failovers []Span
	// StepsBack are the times at which the store's clock stepped back.
	StepsBack []time.Time
	Retries   []Retry
	// Holds are the pauses of tasks that had not ended.
	Holds []Hold
}

// mayBeLost reports whether the store may have lost the first observation before the
// later one, in a fail-over.
func (h *History) mayBeLost(first, later Span) bool {
	return slices.ContainsFunc(h.Failovers, func(f Span) bool {
		// An observation long before the fault was confirmed.
		return !first.Until.Before(f.From) && f.touches(Span{first.From, later.Until})
	})
}

// wiped reports whether the agent of a host lost its data after a time.
func (h *History) wiped(host procfleet.Host, after time.Time) bool {
	return slices.ContainsFunc(h.Wipes, func(w Loss) bool { return w.Host == host && w.Until.After(after) })
}

// byTask returns the submissions that have a task.
func (h *History) byTask() map[procfleet.TaskID]*Submission {
	found := map[procfleet.TaskID]*Submission{}
	for _, s := range h.Submissions {
		if s.Task != "" {
			found[s.Task] = s
		}
	}
	return found
}

// last returns the last reading of a task, or nil.
func (h *History) last(task procfleet.TaskID) *ResultsPoll {
	all := h.ResultsPolls[task]
	if len(all) == 0 || !all[len(all)-1].Last {
		return nil
	}
	return &all[len(all)-1]
}
