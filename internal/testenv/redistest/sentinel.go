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

// StartSentinel starts a Sentinel that monitors master under the given name and promotes a
// replica 300 ms after the master stops replying. It waits until the Sentinel knows the
// given number of replicas. For a master with TLS, args must contain [TLS.Args].
func StartSentinel(tb testing.TB, name string, master *Server, replicas int, args ...string) *Server {
	tb.Helper()
	return startSentinel(tb, 300*time.Millisecond, name, master, replicas, args...)
}

// StartIdleSentinel starts a Sentinel that does not fail over. With [StartSentinel] a busy
// machine may delay the replies of a master so long that the Sentinel fails over, which
// loses writes that did not wait for replicas.
func StartIdleSentinel(tb testing.TB, name string, master *Server, replicas int) *Server {
	tb.Helper()
	return startSentinel(tb, time.Hour, name, master, replicas)
}

// startSentinel starts a Sentinel that fails over if the master does not reply for the
// duration down.
func startSentinel(tb testing.TB, down time.Duration, name string, master *Server, replicas int, args ...string) *Server {
	tb.Helper()
	host, port, err := net.SplitHostPort(cmp.Or(master.TLSAddr, master.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	// Sentinel queries the replicas of a master at its start and then every ten seconds.
	// Wait for the replicas so that the first query finds them.
	connected := fmt.Sprintf("connected_slaves:%d", replicas)
	testenv.Eventually(tb, startTimeout, func() bool {
		info, err := master.ask("INFO replication")
		return err == nil && strings.Contains(info, connected)
	}, "the replicas are connected")
	config := filepath.Join(tb.TempDir(), "sentinel.conf") // Sentinel rewrites this file
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
