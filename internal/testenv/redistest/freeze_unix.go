//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Freeze suspends the server with SIGSTOP; its connections remain open. Thaw resumes the
// server. A suspended server can be killed.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatalf("freeze redis-server: %v", err)
	}
}

// Thaw resumes a server that Freeze suspended.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		tb.Fatalf("thaw redis-server: %v", err)
	}
}
