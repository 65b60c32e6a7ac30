package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// supervisor is the service manager that started this process. The protocol is
// sd_notify(3) of systemd: datagrams of NAME=value lines. A nil supervisor ignores
// notifications.
type supervisor struct {
	socket   net.Conn
	watchdog time.Duration // interval of keep-alives; 0: none
}

// fromEnvironment returns the supervisor named in the environment, or nil. It removes
// the variables, so that child processes cannot send notifications for this process.
func fromEnvironment() (*supervisor, error) {
	path, limit, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	if path == "" {
		return nil, nil //nolint:nilnil // a nil supervisor ignores notifications
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails only for invalid names
	}
	// A leading @ means an abstract address, which package net supports.
	socket, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	s := &supervisor{socket: socket}
	if usec, err := strconv.ParseInt(limit, 10, 64); err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.watchdog = time.Duration(usec) * time.Microsecond / 2
	}
	return s, nil
}

// Intervals of the health check before and after the process is ready.
const (
	pollStarting = 200 * time.Millisecond
	pollRunning  = 5 * time.Second
)

// sendTimeout limits the wait for a supervisor whose socket queue is full.
const sendTimeout = 250 * time.Millisecond

// keepNotified notifies the supervisor when the process is ready and when it stops,
// and sends keep-alives while its parts respond, until end is called.
func (s *supervisor) keepNotified(ctx context.Context, p *Process) (end func()) {
	if s == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	ended := make(chan struct{})
	notifying.Go(func() {
		s.notify(ctx, p)
		s.notifyDraining(ended)
	})
	return func() {
		cancel()
		close(ended)
		notifying.Wait()
		_ = s.socket.Close() // sent datagrams need no flush
	}
}

// notify reports the health of the process until ctx ends.
func (s *supervisor) notify(ctx context.Context, p *Process) {
	ready, status := false, ""
	for {
		begun := time.Now()
		err := s.check(ctx, p)
		if ctx.Err() != nil {
			return
		}
		var lines []string
		nowReady, now := ready || err == nil, statusLine(err)
		if nowReady != ready {
			lines = append(lines, "READY=1")
		}
		if now != status {
			lines = append(lines, "STATUS="+now)
		}
		if s.watchdog > 0 {
			// Also while the process is not ready: a restart does not help a process that
			// waits for NATS. It helps a process that does not respond.
			lines = append(lines, "WATCHDOG=1")
		}
		if s.send(lines...) { // otherwise the next round sends it again
			ready, status = nowReady, now
		}
		s.pause(ctx, ready, time.Since(begun))
	}
}

// notifyDraining sends keep-alives until the process has stopped: the supervisor has a
// separate time limit for stopping.
func (s *supervisor) notifyDraining(ended <-chan struct{}) {
	s.send("STOPPING=1", "STATUS=stopping")
	var tick <-chan time.Time // nil without a watchdog: never fires
	if s.watchdog > 0 {
		ticker := time.NewTicker(s.watchdog)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ended:
			return
		case <-tick:
			s.send("WATCHDOG=1")
		}
	}
}

// check waits for the health check of the process without a timeout: a deadlocked
// process never responds and so sends no keep-alive.
func (s *supervisor) check(ctx context.Context, p *Process) error {
	select {
	case err := <-p.check(ctx):
		return err
	case <-ctx.Done(): // the process is stopping
		return ctx.Err()
	}
}

func (s *supervisor) pause(ctx context.Context, ready bool, spent time.Duration) {
	pause := pollStarting
	if ready {
		pause = pollRunning
	}
	if s.watchdog > 0 {
		pause = min(pause, s.watchdog-spent)
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func statusLine(err error) string {
	if err == nil {
		return "ready"
	}
	return "not ready: " + strings.ReplaceAll(err.Error(), "\n", "; ")
}

// send reports whether the supervisor received the lines. Its wait for a full socket
// queue is limited to sendTimeout.
func (s *supervisor) send(lines ...string) bool {
	if len(lines) == 0 {
		return true
	}
	if err := s.socket.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return false
	}
	_, err := s.socket.Write([]byte(strings.Join(lines, "\n")))
	return err == nil
}
