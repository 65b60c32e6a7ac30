package proc

import (
	"errors"
	"sync"
)

// shared shares one reading of the host among concurrent callers. A caller never gets a
// reading that began before its call: the result of a start command must not be checked
// against the state before the command.
type shared[T any] struct {
	read func() (T, error)

	mu      sync.Mutex
	running *reading[T] // reading in progress; nil = none
	next    *reading[T] // reading that begins when running ends; callers join it until then
}

// reading is one reading; value and err are set once done is closed.
type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// take reads the host, or waits for another caller's reading that has not begun yet. It
// blocks for at most two readings. Callers must not modify the value.
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

// join returns the next reading and the reading in progress before it. first is true for
// the first caller of a reading, which has to carry it out.
func (s *shared[T]) join() (mine, before *reading[T], first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		return s.next, nil, false
	}
	// Waiting callers get this error if read panics.
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
