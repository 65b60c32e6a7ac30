// Package redistest starts real Redis servers for single tests, which may kill and restart
// them. Only tests import it.
package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

const (
	startTimeout = time.Minute      // sufficient on a busy machine
	probeTimeout = 20 * time.Second // a command may wait until the disk has synced
)

// Server is a redis-server of one test on loopback. It writes every change to its append-only
// file before the reply, so that changes survive [Server.Restart]; it does not sync the file,
// because no test stops the machine. Its data is in the temporary folder of the test. The
// server is stopped at the end of the test.
type Server struct {
	// Addr is the address of the server. It remains the same after restarts.
	Addr string
	// TLSAddr is the address with TLS, if the server was started with [TLS.Args].
	TLSAddr string

	bus    string // cluster bus port of a cluster node
	binary string
	dir    string
	args   []string
	env    []string // additional environment variables
	cmd    *exec.Cmd
	exited chan struct{} // closed after cmd has ended

	clock string        // path of the clock file, see [Server.Advance]
	ahead time.Duration // offset in the clock file
}

// Start starts a server. args are added to the command line, for example "--maxmemory",
// "8mb". If redis-server is not installed, Start calls [testenv.Missing].
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{args: durable(args)}
	s.begin(tb)
	return s
}

// durable returns args after the settings that write every change to a file. args may
// override these settings.
func durable(args []string) []string {
	return append([]string{"--save", "", "--appendonly", "yes", "--appendfsync", "no"}, args...)
}

// begin starts the server for the first time.
func (s *Server) begin(tb testing.TB) {
	tb.Helper()
	s.binary, s.dir = lookUp(tb), tb.TempDir()
	if at := slices.Index(s.args, tlsPort); at >= 0 {
		s.TLSAddr = net.JoinHostPort("127.0.0.1", s.args[at+1])
	}
	tb.Cleanup(func() { s.Stop(tb) })
	// Another process may bind the port before the server does, so retry.
	for attempt := 1; ; attempt++ {
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(tb)))
		err := s.start()
		if err == nil {
			return
		}
		if attempt == 3 {
			tb.Fatalf("start redis-server: %v", err)
		}
	}
}

// Need calls [testenv.Missing] if redis-server is not installed. Use it in tests of programs
// that start redis-server themselves.
func Need(tb testing.TB) {
	tb.Helper()
	lookUp(tb)
}

func lookUp(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err == nil {
		return path
	}
	const missing = "redis-server is not installed; install it with \"apt-get install redis-server\" or \"brew install redis\""
	testenv.Missing(tb, "redis", missing)
	return ""
}

// URL returns the URL for clients.
func (s *Server) URL() string { return "redis://" + s.Addr }

// Stop kills the server with SIGKILL and waits until it has ended. It does nothing if the
// server is already stopped.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil {
		tb.Logf("kill redis-server: %v", err)
	}
	<-s.exited
	s.cmd = nil
}

// Restart kills the server, if it runs, and starts it again with the same address and data.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop(tb)
	if err := s.start(); err != nil {
		tb.Fatalf("start redis-server again: %v", err)
	}
}

// Backup kills the server, copies its data for [Server.Restore], and starts the server
// again.
func (s *Server) Backup(tb testing.TB) string {
	tb.Helper()
	s.Stop(tb)
	copied := filepath.Join(tb.TempDir(), "backup")
	if err := os.CopyFS(copied, os.DirFS(s.dir)); err != nil {
		tb.Fatalf("copy the data of redis-server: %v", err)
	}
	s.Restart(tb)
	return copied
}

// Restore kills the server and starts it with the data of a backup.
func (s *Server) Restore(tb testing.TB, backup string) {
	tb.Helper()
	s.Stop(tb)
	s.dir = backup
	s.Restart(tb)
}

// start starts the server and waits until it accepts commands.
func (s *Server) start() error {
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	log := filepath.Join(s.dir, "redis.log")
	args := append(slices.Clone(s.args), "--bind", host, "--port", port, "--dir", s.dir, "--logfile", log)
	cmd := exec.Command(s.binary, args...)
	cmd.Env = append(os.Environ(), s.env...)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the server is expected to end by a signal
	}()
	s.cmd, s.exited = cmd, exited
	if s.ready() {
		return nil
	}
	_ = cmd.Process.Kill() // an error means that the process has already ended
	<-exited
	s.cmd = nil
	said, err := os.ReadFile(log)
	if err != nil {
		return fmt.Errorf("not ready, and its log: %w", err)
	}
	return fmt.Errorf("not ready: %s", said)
}

// ready waits until the server accepts commands or has ended.
func (s *Server) ready() bool {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	for !s.pong() {
		select {
		case <-s.exited:
			return false
		case <-timeout.C:
			return false
		case <-ticker.C:
		}
	}
	return true
}

// pong reports whether the server accepts commands. A server that is loading its data
// replies to PING with an error.
func (s *Server) pong() bool {
	answer, err := s.ask("PING")
	return err == nil && strings.HasPrefix(answer, "+PONG")
}

// Do runs a command with all permissions of the default user, which has no password. The
// words of the command are separated by spaces.
func (s *Server) Do(tb testing.TB, command string) {
	tb.Helper()
	answer, err := s.ask(command)
	if err != nil || strings.HasPrefix(answer, "-") {
		tb.Fatalf("%s: %s %v", command, strings.TrimSpace(answer), err)
	}
}

// ask sends one inline command on a new connection. It returns the line of a simple reply,
// or the content of a bulk string.
func (s *Server) ask(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, probeTimeout)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // the reply is already read
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	answer := bufio.NewReader(conn)
	line, err := answer.ReadString('\n')
	if err != nil || line[0] != '$' {
		return line, err
	}
	size, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil {
		return "", fmt.Errorf("answer %q to %s: %w", line, command, err)
	}
	bulk := make([]byte, max(size, 0))
	_, err = io.ReadFull(answer, bulk)
	return string(bulk), err
}
