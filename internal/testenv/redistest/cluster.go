package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

const slots = 16384

// StartCluster starts a Redis Cluster of n masters without replicas, the
// slots shared evenly, and returns when each of them finds it complete. It
// needs Redis 7.
func StartCluster(tb testing.TB, n int) []*Server {
	tb.Helper()
	nodes, buses := make([]*Server, n), make([]string, n)
	for i := range nodes {
		buses[i] = strconv.Itoa(testenv.FreePort(tb))
		nodes[i] = Start(tb, "--cluster-enabled", "yes", "--cluster-port", buses[i])
		nodes[i].must(tb, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/n, (i+1)*slots/n-1))
		nodes[i].must(tb, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
	}
	for _, node := range nodes[1:] {
		node.must(tb, "CLUSTER MEET 127.0.0.1 "+nodes[0].port()+" "+buses[0])
	}
	for _, node := range nodes {
		testenv.Eventually(tb, startTimeout, func() bool { return node.complete(n) }, "the cluster's nodes know each other")
	}
	return nodes
}

func (s *Server) port() string { return s.Addr[strings.LastIndexByte(s.Addr, ':')+1:] }

// must sends a command that answers OK.
func (s *Server) must(tb testing.TB, command string) {
	tb.Helper()
	answer, err := s.ask(command)
	if err != nil || !strings.HasPrefix(answer, "+OK") {
		tb.Fatalf("%s: %q, %v", command, answer, err)
	}
}

// complete reports whether the node sees all slots served by n masters.
func (s *Server) complete(n int) bool {
	info, err := s.ask("CLUSTER INFO")
	return err == nil && strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, fmt.Sprintf("cluster_size:%d", n)) &&
		strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n))
}
