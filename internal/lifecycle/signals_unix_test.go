//go:build unix

package lifecycle_test

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/lifecycle"
)

// Signals are the process's own, so this test is not parallel.
func TestFirstSignalCancelsSecondExits(t *testing.T) {
	exited := make(chan struct{})
	ctx, stop := lifecycle.WithSignals(t.Context(), func() { close(exited) })
	defer stop()
	raise(t)
	<-ctx.Done()
	if cause := context.Cause(ctx); !strings.Contains(cause.Error(), "terminated") {
		t.Errorf("cause %v, want the signal's name", cause)
	}
	select {
	case <-exited:
		t.Fatal("exited at the first signal")
	default:
	}
	raise(t)
	<-exited
}

func raise(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}
