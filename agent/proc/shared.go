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

	reading sync.Mutex // locked during a reading

	mu   sync.Mutex
	next *reading[T] // reading that has not begun yet; nil = none
}

// reading is one reading; value and err are set once done is closed.
type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

var errNotRead = errors.New("reading the processes of the host was aborted")

// get reads the host, or waits for another caller's reading that has not begun yet. It
// blocks for at most two readings. Callers must not modify the value.
func (s *shared[T]) get() (T, error) {
	s.mu.Lock()
	r, first := s.next, s.next == nil
	if first {
		r = &reading[T]{done: make(chan struct{}), err: errNotRead} // waiting callers get this error if read panics
		s.next = r
	}
	s.mu.Unlock()
	if !first {
		<-r.done
		return r.value, r.err
	}
	defer close(r.done)
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	r.value, r.err = s.read()
	return r.value, r.err
}
