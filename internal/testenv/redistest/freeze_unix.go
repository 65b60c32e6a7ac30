//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Freeze stops the server where it is; its connections stay. It thaws only
// to be killed.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatalf("freeze redis-server: %v", err)
	}
}
