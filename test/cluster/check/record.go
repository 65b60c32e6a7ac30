package check

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
)

// record is a history in progress. It is safe for concurrent use.
type record struct {
	mu       sync.Mutex
	h        History
	tasks    []procfleet.TaskID        // in the order of acceptance
	done     map[procfleet.TaskID]bool // done at the last poll
	accepted int                       // responses that accept a submission
}

func newRecord(run string) *record {
	return &record{
		h:    History{Run: run, TaskPolls: map[procfleet.TaskID][]TaskPoll{}, ResultsPolls: map[procfleet.TaskID][]ResultsPoll{}},
		done: map[procfleet.TaskID]bool{},
	}
}

// submitted records a submission before it is sent, and returns the number of
// submissions.
func (r *record) submitted(s *Submission, timeout time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.At, s.Timeout = time.Now(), timeout
	r.h.Submissions = append(r.h.Submissions, s)
	return len(r.h.Submissions)
}

// setOutcome records the final outcome for the client.
func (r *record) setOutcome(s *Submission, id procfleet.TaskID, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Task, s.Err = id, err
	if id != "" {
		r.tasks = append(r.tasks, id)
	}
}

// addResponse records the response to an attempt. If the response accepts the
// submission, it returns the number of such responses, else 0.
func (r *record) addResponse(a Response) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Responses = append(r.h.Responses, a)
	if a.Status/100 != 2 {
		return 0
	}
	r.accepted++
	return r.accepted
}

// newResponse parses a dispatcher's response to a submission.
func newResponse(key, dispatcher string, status int, body []byte) Response {
	a := Response{Key: key, Dispatcher: dispatcher, Status: status}
	var answer struct {
		ID    procfleet.TaskID `json:"id"`
		Error struct {
			Code string           `json:"code"`
			Task procfleet.TaskID `json:"task"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &answer) == nil {
		if status/100 == 2 && answer.ID != "" {
			a.Task = answer.ID
			return a
		}
		a.Code, a.Task = answer.Error.Code, answer.Error.Task
	}
	const most = 300
	a.Text = string(body[:min(len(body), most)])
	return a
}

func (r *record) addPoll(id procfleet.TaskID, l TaskPoll) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.TaskPolls[id] = append(r.h.TaskPolls[id], l)
	r.done[id] = !l.Missing && l.Task.Done()
}

// addNotification records a callback.
func (r *record) addNotification(n Notification) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Callbacks = append(r.h.Callbacks, n)
}

func (r *record) addResults(id procfleet.TaskID, reading ResultsPoll) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.ResultsPolls[id] = append(r.h.ResultsPolls[id], reading)
}

// failover begins a span in which the store may fail over.
func (r *record) failover(from time.Time) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.h.Failovers)
	const farAhead = 1000 * time.Hour // until over is called
	r.h.Failovers = append(r.h.Failovers, Span{from, from.Add(farAhead)})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.h.Failovers[n].Until = time.Now()
	}
}

func (r *record) stepBack(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.StepsBack = append(r.h.StepsBack, at)
}

// share returns the n-th share of the tasks, separated into open ones and done
// ones.
func (r *record) share(n, of int) (open, done []procfleet.TaskID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := n; i < len(r.tasks); i += of {
		if id := r.tasks[i]; r.done[id] {
			done = append(done, id)
		} else {
			open = append(open, id)
		}
	}
	return open, done
}

// all returns every task.
func (r *record) all() []procfleet.TaskID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tasks)
}

// edit calls f with exclusive access to the history.
func (r *record) edit(f func(h *History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// readEvery returns the number of polls of a task's counters per poll of its
// results.
func (r *record) readEvery(id procfleet.TaskID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	polls := r.h.TaskPolls[id]
	if n := len(polls); n > 0 && polls[n-1].Task.Items >= bigStep {
		return readBigEvery
	}
	return readEvery
}
