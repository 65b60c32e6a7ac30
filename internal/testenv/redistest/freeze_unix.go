//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Freeze stops the server where it is; its connections stay. It thaws when it
// is killed, or with Thaw.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatalf("freeze redis-server: %v", err)
	}
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		tb.Fatalf("thaw redis-server: %v", err)
	}
}
