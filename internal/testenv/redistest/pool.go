package redistest

import (
	"sync"
	"testing"
)

// Pool shares servers among tests: a test takes a server that is empty and that no other
// test uses, and returns it when it ends. As many servers run as tests run at once.
type Pool struct {
	tb    testing.TB
	start func(tb testing.TB, args ...string) *Server

	mu   sync.Mutex
	idle []*Server
}

// NewPool returns a pool of servers that start starts. They stop at the end of tb, of which
// the tests that use the pool must be subtests.
func NewPool(tb testing.TB, start func(tb testing.TB, args ...string) *Server) *Pool {
	tb.Helper()
	return &Pool{tb: tb, start: start}
}

// Take returns an empty server with the right time, for tb alone.
func (p *Pool) Take(tb testing.TB) *Server {
	tb.Helper()
	s := p.takeIdle()
	if s == nil {
		s = p.start(p.tb)
	}
	tb.Cleanup(func() {
		s.Do(tb, "FLUSHALL")
		if s.ahead != 0 {
			s.Advance(tb, -s.ahead)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, s)
	})
	return s
}

func (p *Pool) takeIdle() *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s
}
