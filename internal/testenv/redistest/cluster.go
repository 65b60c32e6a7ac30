package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

const slots = 16384

// StartCluster starts a Redis Cluster of n masters without replicas and with evenly
// distributed slots. It waits until every master reports a complete cluster. args are added
// to the command lines. StartCluster requires Redis 7.
func StartCluster(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	return startCluster(tb, n, func() []string { return args })
}

// StartTLSCluster is [StartCluster] with TLS between nodes and to clients.
func StartTLSCluster(tb testing.TB, n int, files TLS) []*Server {
	tb.Helper()
	return startCluster(tb, n, func() []string { return files.Args(tb) })
}

func startCluster(tb testing.TB, n int, args func() []string) []*Server {
	tb.Helper()
	nodes := make([]*Server, n)
	for i := range nodes {
		nodes[i] = startNode(tb, args())
		nodes[i].must(tb, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/n, (i+1)*slots/n-1))
		nodes[i].must(tb, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
		if i > 0 {
			nodes[i].meet(tb, nodes[0])
		}
	}
	awaitCluster(tb, nodes)
	return nodes
}

// Join adds an empty master to a cluster and waits until all given nodes, which must be all
// nodes of the cluster, know the master.
func Join(tb testing.TB, cluster []*Server, args ...string) *Server {
	tb.Helper()
	node := startNode(tb, args)
	node.meet(tb, cluster[0])
	awaitCluster(tb, append(slices.Clone(cluster), node))
	return node
}

// Replicate changes an empty master to a replica of another master and waits until the
// replica is online.
func (s *Server) Replicate(tb testing.TB, master *Server) {
	tb.Helper()
	id, err := master.ask("CLUSTER MYID")
	if err != nil {
		tb.Fatal(err)
	}
	s.must(tb, "CLUSTER REPLICATE "+id)
	testenv.Eventually(tb, startTimeout, func() bool {
		info, err := master.ask("INFO replication")
		return err == nil && strings.Contains(info, "state=online")
	}, "the replica is online")
}

func startNode(tb testing.TB, args []string) *Server {
	tb.Helper()
	bus := strconv.Itoa(testenv.FreePort(tb))
	s := Start(tb, append([]string{"--cluster-enabled", "yes", "--cluster-port", bus}, args...)...)
	s.bus = bus
	return s
}

func (s *Server) meet(tb testing.TB, other *Server) {
	tb.Helper()
	s.must(tb, "CLUSTER MEET 127.0.0.1 "+other.port()+" "+other.bus)
}

func awaitCluster(tb testing.TB, nodes []*Server) {
	tb.Helper()
	for _, node := range nodes {
		testenv.Eventually(tb, startTimeout, func() bool { return node.complete(len(nodes)) }, "the cluster's nodes know each other")
	}
}

func (s *Server) port() string { return s.Addr[strings.LastIndexByte(s.Addr, ':')+1:] }

// must sends a command and fails the test unless the reply is OK.
func (s *Server) must(tb testing.TB, command string) {
	tb.Helper()
	answer, err := s.ask(command)
	if err != nil || !strings.HasPrefix(answer, "+OK") {
		tb.Fatalf("%s: %q, %v", command, answer, err)
	}
}

// complete reports whether the node knows the given number of nodes, itself included, and
// every slot is served.
func (s *Server) complete(nodes int) bool {
	info, err := s.ask("CLUSTER INFO")
	return err == nil && strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", nodes))
}
