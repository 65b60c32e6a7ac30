package worker

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet"
)

// steppedClock finds moments of tasks that are later than now: the store's clock
// has stepped back since. What is timed from such a moment would be late by the
// size of the step, so it is timed from when this worker first read the moment.
// It takes at most twice as long as without a step.
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
	return s.since(task.ID, task.CreatedAt, now).Add(task.Deadline.Sub(task.CreatedAt))
}

// since is the moment from which to time what began at the given moment of a
// task; it is never later than that.
func (s *steppedClock) since(id procfleet.TaskID, at, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, known := s.first[id]
	if !known {
		if !at.After(now) {
			return at
		}
		if len(s.first) >= maxStepped { // most of them have ended by their results
			clear(s.first)
		}
		first = now
		s.first[id] = now
	}
	if first.After(at) {
		return at
	}
	return first
}

func (s *steppedClock) forget(id procfleet.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, id)
}
