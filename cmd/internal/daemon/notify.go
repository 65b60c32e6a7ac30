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

// supervisor is the service manager that started this process, by the
// protocol of systemd's sd_notify(3): datagrams of NAME=value lines. nil is
// none.
type supervisor struct {
	socket   net.Conn
	watchdog time.Duration // how often it wants to hear; 0 = never
}

// fromEnvironment returns the supervisor that the environment names, nil
// without one. The variables are taken out, so that no command that this
// process runs speaks for it.
func fromEnvironment() (*supervisor, error) {
	path, limit, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	if path == "" {
		return nil, nil //nolint:nilnil // a nil supervisor hears nothing
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails only for names that are no names
	}
	// A leading @ is an abstract address; package net knows that.
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

// How often the process is asked how it is, before it is ready and afterwards.
const (
	askStarting = 200 * time.Millisecond
	askRunning  = 5 * time.Second
)

// sendTimeout is for a supervisor whose queue is full.
const sendTimeout = 250 * time.Millisecond

// keepTold tells the supervisor when the process is ready, when it stops and,
// as long as its parts answer, that it is alive. What it returns ends that.
func (s *supervisor) keepTold(ctx context.Context, p *Process) (end func()) {
	if s == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	ended := make(chan struct{})
	told.Go(func() {
		s.tell(ctx, p)
		s.tellDraining(ended)
	})
	return func() {
		cancel()
		close(ended)
		told.Wait()
		_ = s.socket.Close() // nothing is on its way in it
	}
}

// tell returns when ctx ends.
func (s *supervisor) tell(ctx context.Context, p *Process) {
	ready, status := false, ""
	for {
		asked := time.Now()
		err := s.ask(ctx, p)
		if ctx.Err() != nil {
			return
		}
		var news []string
		nowReady, now := ready || err == nil, statusLine(err)
		if nowReady != ready {
			news = append(news, "READY=1")
		}
		if now != status {
			news = append(news, "STATUS="+now)
		}
		if s.watchdog > 0 {
			// Not being ready is no reason to be restarted: whoever waits for
			// NATS waits no better as a new process. Not answering is.
			news = append(news, "WATCHDOG=1")
		}
		if s.send(news...) { // else it is told again
			ready, status = nowReady, now
		}
		s.pause(ctx, ready, time.Since(asked))
	}
}

// tellDraining says until the process has ended in good order that it is
// alive: the supervisor bounds that time by itself.
func (s *supervisor) tellDraining(ended <-chan struct{}) {
	s.send("STOPPING=1", "STATUS=stopping")
	var tick <-chan time.Time // never, if nobody wants to hear
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

// ask returns what the process says of itself, however long it takes: one
// whose parts wait for each other never answers, and is never called alive.
func (s *supervisor) ask(ctx context.Context, p *Process) error {
	select {
	case err := <-p.ask(ctx):
		return err
	case <-ctx.Done(): // it is not waited for when the process ends
		return ctx.Err()
	}
}

func (s *supervisor) pause(ctx context.Context, ready bool, spent time.Duration) {
	pause := askStarting
	if ready {
		pause = askRunning
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

// send reports whether the lines were taken. A supervisor that reads nothing
// must not hold up the process.
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
