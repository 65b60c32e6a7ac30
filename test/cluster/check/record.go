package check

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
)

// record is a history that is still being written. It is safe for concurrent
// use.
type record struct {
	mu       sync.Mutex
	h        History
	tasks    []procfleet.TaskID        // as they were accepted
	done     map[procfleet.TaskID]bool // was seen done at the last look
	accepted int                       // answers that accept
}

func newRecord(run string) *record {
	return &record{
		h:    History{Run: run, Looks: map[procfleet.TaskID][]Look{}, Readings: map[procfleet.TaskID][]Reading{}},
		done: map[procfleet.TaskID]bool{},
	}
}

// submitted notes a submission before it is sent, and returns how many there
// are with it.
func (r *record) submitted(s *Submission, timeout time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.At, s.Timeout = time.Now(), timeout
	r.h.Submissions = append(r.h.Submissions, s)
	return len(r.h.Submissions)
}

// answered notes what the client was told in the end.
func (r *record) answered(s *Submission, id procfleet.TaskID, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Task, s.Err = id, err
	if id != "" {
		r.tasks = append(r.tasks, id)
	}
}

// answer notes an answer to an attempt, and returns how many have accepted if
// this one has, else 0.
func (r *record) answer(a Answer) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Answers = append(r.h.Answers, a)
	if a.Status/100 != 2 {
		return 0
	}
	r.accepted++
	return r.accepted
}

// newAnswer reads what a dispatcher answered to a submission.
func newAnswer(key, door string, status int, body []byte) Answer {
	a := Answer{Key: key, Door: door, Status: status}
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

func (r *record) look(id procfleet.TaskID, l Look) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Looks[id] = append(r.h.Looks[id], l)
	r.done[id] = !l.Missing && l.Task.Done()
}

// notice notes a callback.
func (r *record) notice(n Notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Callbacks = append(r.h.Callbacks, n)
}

func (r *record) reading(id procfleet.TaskID, reading Reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Readings[id] = append(r.h.Readings[id], reading)
}

// failover begins a span in which the store may fail over.
func (r *record) failover(from time.Time) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.h.Failovers)
	const farAhead = 1000 * time.Hour // until it is known
	r.h.Failovers = append(r.h.Failovers, Span{from, from.Add(farAhead)})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.h.Failovers[n].Until = time.Now()
	}
}

// share returns the n-th of so many shares of the tasks: those that were not
// seen done, and the others.
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

// edit lets f read or change the history while nobody else does.
func (r *record) edit(f func(h *History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// readEvery is how many looks at a task there are for one reading.
func (r *record) readEvery(id procfleet.TaskID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	looks := r.h.Looks[id]
	if n := len(looks); n > 0 && looks[n-1].Task.Items >= bigStep {
		return readBigEvery
	}
	return readEvery
}
