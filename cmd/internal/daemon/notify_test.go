package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const patience = 30 * time.Second

// listening returns a supervisor, and the socket that receives its notifications.
func listening(t *testing.T) (*supervisor, *net.UnixConn) {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	heard, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = heard.Close() }) // nothing depends on it
	socket, err := net.DialUnix("unixgram", nil, address)
	if err != nil {
		t.Fatal(err)
	}
	return &supervisor{socket: socket, watchdog: 5 * time.Millisecond}, heard
}

// hears reports whether a notification with the line arrives within the given time.
func hears(t *testing.T, heard *net.UnixConn, line string, within time.Duration) bool {
	t.Helper()
	if err := heard.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	for {
		n, err := heard.Read(message)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(message[:n]), line) {
			return true
		}
	}
}

func TestWhoDoesNotAnswerIsNotCalledAlive(t *testing.T) {
	t.Parallel()
	s, heard := listening(t)
	var p Process
	p.ReadyWhen(func(context.Context) error { return errors.New("NATS is away") })
	end := s.keepNotified(t.Context(), &p)
	defer end()
	if !hears(t, heard, "WATCHDOG=1", patience) {
		t.Fatal("not called alive while it waits")
	}
	stuck := make(chan struct{})
	answer := make(chan struct{})
	defer close(answer)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	p.ReadyWhen(func(context.Context) error {
		select {
		case <-first:
			close(stuck)
		default:
		}
		<-answer
		return nil
	})
	<-stuck
	for hears(t, heard, "", time.Millisecond) { // discard earlier notifications
	}
	if hears(t, heard, "WATCHDOG=1", 20*s.watchdog) {
		t.Error("called alive although it does not answer")
	}
}

func TestItIsAliveUntilItHasStopped(t *testing.T) {
	t.Parallel()
	s, heard := listening(t)
	var p Process
	p.ReadyWhen(func(context.Context) error { return nil })
	ctx, stop := context.WithCancel(t.Context())
	end := s.keepNotified(ctx, &p)
	defer end()
	if !hears(t, heard, "READY=1", patience) {
		t.Fatal("not called ready")
	}
	stop()
	if !hears(t, heard, "STOPPING=1", patience) || !hears(t, heard, "WATCHDOG=1", patience) {
		t.Error("not called stopping, or not alive while it stops")
	}
}

func TestASupervisorThatReadsNothingHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s, heard := listening(t)
	for s.send("STATUS=nobody reads this") { // until its queue is full
	}
	var p Process
	p.ReadyWhen(func(context.Context) error { return nil })
	end := s.keepNotified(t.Context(), &p)
	if !hears(t, heard, "READY=1", patience) { // it reads again
		t.Error("what was not taken is not told again")
	}
	for s.send("STATUS=nobody reads this") {
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("it does not end")
	}
}
