package proc

import (
	"errors"
	"sync"
)

// shared shares one reading of the host among concurrent callers. No caller gets a
// reading that began before its call, so that a start is never checked against the
// state before its command.
type shared[T any] struct {
	read func() (T, error)

	mu      sync.Mutex
	running *reading[T] // under way; nil = none
	next    *reading[T] // begins when running has ended; shared by all callers until then
}

// reading is one reading; value and err are set once done is closed.
type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// take reads the host, or waits for another caller's reading that has not begun yet.
// It blocks for two readings at most. The value must not be changed.
func (s *shared[T]) take() (T, error) {
	mine, before, first := s.join()
	if !first {
		<-mine.done
		return mine.value, mine.err
	}
	if before != nil {
		<-before.done
	}
	s.begin(mine)
	defer s.end(mine)
	mine.value, mine.err = s.read()
	return mine.value, mine.err
}

var errNotRead = errors.New("reading the processes of the host was aborted")

// join returns the next reading and the one before it. The first caller to join a
// reading carries it out.
func (s *shared[T]) join() (mine, before *reading[T], first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		return s.next, nil, false
	}
	// The error is for the waiting callers if the reading panics.
	s.next = &reading[T]{done: make(chan struct{}), err: errNotRead}
	return s.next, s.running, true
}

func (s *shared[T]) begin(mine *reading[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.next = mine, nil
}

func (s *shared[T]) end(mine *reading[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = nil
	close(mine.done)
}
