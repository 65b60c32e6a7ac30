package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// supervisor implements the service manager's side of systemd's notification protocol.
type supervisor struct {
	t    *testing.T
	told chan string // messages in their order
}

func supervise(t *testing.T, path string) supervisor {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := supervisor{t, make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		message := make([]byte, 4096)
		for {
			n, err := socket.Read(message)
			if err != nil {
				return // the test is over
			}
			select {
			case s.told <- string(message[:n]):
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = socket.Close() // nothing depends on it
		<-ended
	})
	return s
}

func (s supervisor) waitFor(line string) {
	s.t.Helper()
	late := time.After(startTimeout)
	for {
		select {
		case message := <-s.told:
			if slices.Contains(strings.Split(message, "\n"), line) {
				return
			}
			if strings.Contains(message, "READY=1") {
				s.t.Fatalf("ready before %s", line)
			}
		case <-late:
			s.t.Fatalf("%s was not told", line)
		}
	}
}

func TestSystemdIsTold(t *testing.T) {
	t.Parallel()
	redis, binary, nats := redistest.Start(t), testenv.BuildBinary(t, "./cmd/procfleet"), freeAddress(t)
	type role struct {
		supervisor
		process *testenv.Child
	}
	roles := map[string]role{}
	for name, words := range map[string][]string{
		"worker": {"--redis", "redis://" + redis.Addr + "/0"}, "agent": {"--ip", "10.0.0.1", "--data", t.TempDir()},
		"dispatcher": {"--http", "127.0.0.1:0", "--redis", "redis://" + redis.Addr + "/0"},
	} {
		path := filepath.Join(t.TempDir(), "notify")
		if name == "agent" { // @ is how an abstract address is written
			path = fmt.Sprintf("@procfleet-test-%d-notify", os.Getpid())
		}
		env := []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"}
		roles[name] = role{supervise(t, path), testenv.StartChild(t, env, binary, append([]string{name, "--nats", "nats://" + nats}, words...)...)}
	}
	for name, r := range roles {
		status := "STATUS=not ready: starting: waiting for NATS: dial tcp "
		if name == "agent" {
			status = "STATUS=not ready: not connected to NATS: dial tcp "
		}
		r.waitFor(status + nats + ": connect: connection refused")
		r.waitFor("WATCHDOG=1") // waiting for NATS is no reason to be restarted
	}
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "nats-server", "--listen", nats, "--data", t.TempDir())
	for _, r := range roles {
		r.waitFor("READY=1")
		r.waitFor("WATCHDOG=1")
		r.process.Signal(syscall.SIGTERM)
	}
	for name, r := range roles {
		r.waitFor("STOPPING=1")
		if code := r.process.Wait(t, startTimeout); code != 0 {
			t.Errorf("%s: exit %d", name, code)
		}
	}
}
