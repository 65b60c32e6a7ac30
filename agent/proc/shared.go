package proc

import (
	"errors"
	"sync"
)

// shared lets those who ask together share one reading of the host. None is
// answered from a reading that began before it asked, so that sharing makes
// nobody see an older host: a start is never judged by what was there before
// its command.
type shared[T any] struct {
	read func() (T, error)

	mu      sync.Mutex
	running *reading[T] // under way; nil = none
	next    *reading[T] // begins when running has ended; whoever asks now gets it
}

// reading is one reading; its outcome is set once done is closed.
type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// take reads the host, or waits for somebody else's reading that has not begun
// yet. It blocks for two readings at most. The value must not be changed.
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

var errNotRead = errors.New("reading the processes of the host was broken off")

// join returns the next reading and whether the caller is the first to ask for
// it, who then carries it out after the one before.
func (s *shared[T]) join() (mine, before *reading[T], first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		return s.next, nil, false
	}
	// The error is for those who wait, should the reading panic.
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
