//go:build linux

package fleet

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// Images are the names of the nodes' images.
type Images struct{ Server, Agent, Bench, NATS, Redis string }

// Config describes a fleet. Most tests set only Images.
type Config struct {
	Images Images
	// WaitReplicas is --redis-wait-replicas of dispatchers and workers. With 0 a
	// fail-over may lose confirmed writes.
	WaitReplicas int
	// RedisCluster selects a Redis Cluster of three masters with a replica each,
	// without Sentinels.
	RedisCluster bool
	// LightAgents is the number of simulated agents in one program, which report
	// success for every command and run nothing. Their hosts are 0:10.0.0.0 and the
	// following; 0 means none.
	LightAgents int
	// RedisReplicas is the number of replicas of the Redis master under Sentinel;
	// default 1.
	RedisReplicas int
	// SmallDisks gives NATS servers, Redis servers and agents disks that
	// [Node.FillDisk] can fill.
	SmallDisks bool
	// Clocks states that the programs in Images add the offset of [Node.SetClock]
	// to their wall clocks; see package images.
	Clocks bool
}

// The fleet has three NATS servers in a cluster, a Redis master with a replica
// under three Sentinels, two dispatchers, three workers, and six agents in each of
// two cloud areas. The second area has its own network behind a NATS leaf node.
const (
	natsServers   = 3
	clusterNodes  = 6 // nodes of the Redis Cluster
	sentinels     = 3
	dispatchers   = 2
	workers       = 3
	agentsPerArea = 6

	// FarArea is the cloud area behind the leaf node; the other area is 0.
	FarArea = 2
)

// Fleet is a procfleet in containers.
type Fleet struct {
	name  string // prefix of its containers and networks
	dir   string // folder on this machine with the data of the nodes
	cfg   Config
	log   func(format string, args ...any)
	nodes []*Node
	// gateway is this machine's address in the near network.
	gateway string

	near string // network of all nodes except the second area's agents
	far  string // network of the second area

	ca     *tlstest.CA
	certs  map[*Node]tlstest.Pair
	secret string // password of all Redis users
}

// Start starts a fleet and waits until every node is ready. The fleet ends with the
// test. If the test failed, its log gets the end of each node's log.
func Start(tb testing.TB, cfg Config) *Fleet {
	tb.Helper()
	testenv.NeedRoot(tb)
	cfg.RedisReplicas = cmp.Or(cfg.RedisReplicas, 1)
	f := &Fleet{name: fmt.Sprintf("pfc-%d-%d", os.Getpid(), rand.N(1000)), dir: tb.TempDir(), cfg: cfg, log: tb.Logf, secret: cryptorand.Text()}
	tb.Cleanup(func() { f.down(tb) })
	if err := f.layOut(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	f.certify(tb)
	if err := f.makeKeys(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	if err := f.startAll(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startPatience)
	defer cancel()
	if err := f.Settled(ctx); err != nil {
		tb.Fatal(err)
	}
	return f
}

// startPatience is the maximum time until the fleet is ready, on a busy machine.
const startPatience = 3 * time.Minute

// Nodes returns the nodes of these kinds, by kind and name; without kinds, all
// nodes.
func (f *Fleet) Nodes(kinds ...Kind) []*Node {
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *Node) bool {
		return len(kinds) > 0 && !slices.Contains(kinds, n.Kind)
	})
}

// FaultTargets returns all nodes except the simulated agents, which have no
// journals.
func (f *Fleet) FaultTargets() []*Node {
	return slices.DeleteFunc(f.Nodes(), func(n *Node) bool { return n.Kind == Light })
}

// Node returns the node with a name, such as "nats-1". The node must exist.
func (f *Fleet) Node(name string) *Node {
	for _, n := range f.nodes {
		if n.Name == name {
			return n
		}
	}
	panic("no node " + name)
}

// Dispatchers returns the URLs of the dispatchers from this machine.
func (f *Fleet) Dispatchers() []string {
	var urls []string
	for _, n := range f.Nodes(Dispatcher) {
		urls = append(urls, "http://"+n.IP+":8080")
	}
	return urls
}

// Gateway returns this machine's address in the network of the nodes.
func (f *Fleet) Gateway() string { return f.gateway }

// LightHosts returns the hosts of the simulated agents.
func (f *Fleet) LightHosts() []string {
	var hosts []string
	for i := range f.cfg.LightAgents {
		hosts = append(hosts, fmt.Sprintf("0:10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	return hosts
}

// NATSURLs returns the URLs of the NATS servers from this machine.
func (f *Fleet) NATSURLs() []string {
	var urls []string
	for _, n := range f.Nodes(NATS) {
		urls = append(urls, "tls://"+n.IP+":4222")
	}
	return urls
}

// Repair ends all faults of all nodes.
func (f *Fleet) Repair() error {
	return f.each(f.nodes, (*Node).Repair)
}

// each calls do for the nodes, several at a time.
func (f *Fleet) each(nodes []*Node, do func(*Node) error) error {
	const atATime = 4
	var (
		all    sync.WaitGroup
		places = make(chan struct{}, atATime)
		failed = make([]error, len(nodes))
	)
	for i, n := range nodes {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			failed[i] = do(n)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// startAll starts every container, kind by kind. A node waits for the nodes that it
// needs, so the order only saves time.
func (f *Fleet) startAll(ctx context.Context) error {
	for _, kinds := range [][]Kind{{NATS, Redis}, {Leaf, Sentinel}, {Dispatcher, Worker, Agent, Light}} {
		if err := f.each(f.Nodes(kinds...), func(n *Node) error { return f.run(ctx, n) }); err != nil {
			return err
		}
		if f.cfg.RedisCluster && slices.Contains(kinds, Redis) {
			if err := f.joinCluster(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// down removes everything. If the test failed, it first logs the output of the
// nodes.
func (f *Fleet) down(tb testing.TB) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	if tb.Failed() {
		for _, n := range f.nodes {
			logs, err := n.Logs(ctx, 40)
			tb.Logf("%s: %v\n%s", n, err, logs)
		}
	}
	for _, n := range f.nodes {
		n.faults.delay.close()
	}
	err := f.each(f.nodes, func(n *Node) error {
		_, err := run(ctx, "docker", "rm", "--force", "--volumes", n.container())
		return err
	})
	if err != nil {
		tb.Log(err)
	}
	for _, n := range f.nodes {
		if f.cfg.SmallDisks && n.hasSmallDisk() {
			if _, err := run(ctx, "umount", "--lazy", f.path(n.Name, "data")); err != nil {
				tb.Error(err)
			}
		}
	}
	for _, network := range []string{f.near, f.far} {
		if network == "" {
			continue
		}
		if _, err := run(ctx, "docker", "network", "rm", network); err != nil {
			tb.Error(err)
		}
	}
}

// commandTimeout limits one command, a graceful stop included.
const commandTimeout = 2 * time.Minute

// run runs a program and returns its output without the last line end.
func run(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, text)
	}
	return text, nil
}

func (f *Fleet) path(parts ...string) string {
	return filepath.Join(append([]string{f.dir}, parts...)...)
}
