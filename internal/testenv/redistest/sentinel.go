package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// StartSentinel starts a Sentinel that watches a master under a name and puts
// a replica in its place soon after it is gone. It returns when it knows as
// many replicas as are given.
func StartSentinel(t testing.TB, name string, master *Server, replicas int) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "sentinel.conf") // Sentinel writes into it
	text := fmt.Sprintf("sentinel monitor %[1]s %s %s 1\nsentinel down-after-milliseconds %[1]s 300\nsentinel failover-timeout %[1]s 3000\n", name, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{args: []string{config, "--sentinel"}}
	s.begin(t)
	known := fmt.Sprintf("slaves=%d", replicas)
	testenv.Eventually(t, startTimeout, func() bool {
		info, err := s.ask("INFO sentinel")
		return err == nil && strings.Contains(info, known)
	}, "Sentinel knows the replicas")
	return s
}
