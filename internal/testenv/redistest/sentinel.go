package redistest

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// StartSentinel starts a Sentinel that watches a master under a name and puts
// a replica in its place soon after it is gone. It returns when it knows as
// many replicas as are given. A master that speaks TLS it reaches by that, for
// which it needs args, too.
func StartSentinel(tb testing.TB, name string, master *Server, replicas int, args ...string) *Server {
	tb.Helper()
	return startSentinel(tb, 300*time.Millisecond, name, master, replicas, args...)
}

// StartIdleSentinel starts a Sentinel that replaces no master. On a busy machine
// a master may stand still for longer than the Sentinel of [StartSentinel]
// waits, and the fail-over loses what did not wait for replicas.
func StartIdleSentinel(tb testing.TB, name string, master *Server, replicas int) *Server {
	tb.Helper()
	return startSentinel(tb, time.Hour, name, master, replicas)
}

// startSentinel starts a Sentinel that replaces a master that has not answered
// for the time that down says.
func startSentinel(tb testing.TB, down time.Duration, name string, master *Server, replicas int, args ...string) *Server {
	tb.Helper()
	host, port, err := net.SplitHostPort(cmp.Or(master.TLSAddr, master.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	// Sentinel asks a master for its replicas when it begins, and then every
	// ten seconds; it shall find them the first time.
	connected := fmt.Sprintf("connected_slaves:%d", replicas)
	testenv.Eventually(tb, startTimeout, func() bool {
		info, err := master.ask("INFO replication")
		return err == nil && strings.Contains(info, connected)
	}, "the replicas are connected")
	config := filepath.Join(tb.TempDir(), "sentinel.conf") // Sentinel writes into it
	text := fmt.Sprintf("sentinel monitor %[1]s %s %s 1\nsentinel down-after-milliseconds %[1]s %[4]d\nsentinel failover-timeout %[1]s 3000\n", name, host, port, down.Milliseconds())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &Server{args: append([]string{config, "--sentinel"}, args...)}
	s.begin(tb)
	known := fmt.Sprintf("slaves=%d", replicas)
	testenv.Eventually(tb, startTimeout, func() bool {
		info, err := s.ask("INFO sentinel")
		return err == nil && strings.Contains(info, known)
	}, "Sentinel knows the replicas")
	return s
}
