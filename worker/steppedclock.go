package worker

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet"
)

// steppedClock knows the open tasks that were created later than now: the
// store's clock has stepped back since. Their deadlines would be late by the
// size of the step, so they count anew from when this worker first read such a
// task. It ends after at most twice the time that it was given.
type steppedClock struct {
	mu    sync.Mutex
	first map[procfleet.TaskID]time.Time
}

// maxStepped bounds the memory; what is forgotten counts anew.
const maxStepped = 1 << 16

func newSteppedClock() *steppedClock {
	return &steppedClock{first: map[procfleet.TaskID]time.Time{}}
}

// deadline is when an open task is overdue.
func (s *steppedClock) deadline(task *procfleet.Task, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, known := s.first[task.ID]
	if !known {
		if !task.CreatedAt.After(now) {
			return task.Deadline
		}
		if len(s.first) >= maxStepped { // most of them have ended by their results
			clear(s.first)
		}
		first = now
		s.first[task.ID] = now
	}
	deadline := first.Add(task.Deadline.Sub(task.CreatedAt))
	if deadline.After(task.Deadline) {
		return task.Deadline
	}
	return deadline
}

func (s *steppedClock) forget(id procfleet.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, id)
}
