//go:build linux

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/test/cluster/check"
)

var (
	fireSeed  = flag.Uint64("fire.seed", 3, "seed of the load and the schedule of TestFaultsUnderLoad")
	fireSteps = flag.Int("fire.steps", 3, "number of steps in the schedule of TestFaultsUnderLoad")
	fireFault = flag.Duration("fire.fault", 5*time.Second, "longest duration of a fault of TestFaultsUnderLoad")
)

// TestFaultsUnderLoad causes faults in a fleet of processes under load: it kills, freezes
// and restarts NATS, Redis with a replica and Sentinel, two dispatchers, two
// workers and three agents, one or two at a time.
func TestFaultsUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFireFleet(t)
	load, err := check.Start(t.Context(), f.load())
	if err != nil {
		t.Fatal(err)
	}
	defer load.Stop()
	schedule := check.NewSchedule(*fireSeed, f.targets(), *fireSteps)
	t.Log(schedule)
	for _, step := range schedule.Steps {
		over := func() {}
		if step.MayFailOver() {
			over = load.Failover()
		}
		f.play(step)
		f.settle()
		over()
		t.Logf("%s: settled", time.Now().Format(time.TimeOnly))
	}
	found, err := load.Settle(t.Context())
	t.Logf("%s: checked", time.Now().Format(time.TimeOnly))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(load.Totals())
	for _, v := range found {
		t.Error(v)
	}
}

// fireFleet is a fleet whose parts the test can kill and start.
type fireFleet struct {
	t           *testing.T
	sentinel    *redistest.Server
	folder      string // path of a separate folder on every host
	parts       []*part
	dispatchers []string
	hosts       []procfleet.Host
	natsURL     string
	deaths      []check.Loss // of hosts, with all their processes
}

// part is one process of the fleet.
type part struct {
	check.Node
	kill, start   func()
	freeze, thaw  func()
	restart, heal func()
	marks         string // folder of an agent's host
	redis         string // address of a Redis server
}

func newFireFleet(t *testing.T) *fireFleet {
	t.Helper()
	testenv.NeedRoot(t) // each host is a namespace
	f := &fireFleet{t: t, folder: t.TempDir()}
	b := startBroker(t)
	f.natsURL = b.URL
	f.add("nats", check.NATS, b.Start, func() *testenv.Child { return b.child })
	f.startRedis()
	program := testenv.BuildBinary(t, "./cmd/procfleet")
	redisURL := f.sentinel.URL() + "?master_name=fleet"
	for i := range 2 {
		addr := testenv.FreeAddress(t)
		f.dispatchers = append(f.dispatchers, "http://"+addr)
		f.run(fmt.Sprintf("dispatcher-%d", i+1), check.Dispatcher, program,
			"dispatcher", "--http", addr, "--nats", b.URL, "--redis", redisURL, "--redis-wait-replicas", "1")
	}
	for i := range 2 {
		f.run(fmt.Sprintf("worker-%d", i+1), check.Worker, program,
			"worker", "--nats", b.URL, "--redis", redisURL, "--redis-wait-replicas", "1")
	}
	for i := range 3 {
		f.startAgent(i)
	}
	f.settle()
	return f
}

// run adds a program that is restarted with the same arguments.
func (f *fireFleet) run(name string, kind check.Kind, program string, args ...string) *part {
	var child *testenv.Child
	start := func() { child = testenv.StartChild(f.t, nil, program, args...) }
	start()
	return f.add(name, kind, start, func() *testenv.Child { return child })
}

func (f *fireFleet) add(name string, kind check.Kind, start func(), child func() *testenv.Child) *part {
	p := &part{
		Node: check.Node{Name: name, Kind: kind}, start: start,
		kill:   func() { child().Kill() },
		freeze: func() { child().Signal(syscall.SIGSTOP) },
		thaw:   func() { child().Signal(syscall.SIGCONT) },
	}
	p.restart = func() {
		child().Signal(syscall.SIGTERM)
		child().Wait(f.t, startTimeout)
		start()
	}
	f.parts = append(f.parts, p)
	return p
}

// startRedis starts a master, its replica, and a Sentinel that promotes the replica only in
// [fireFleet.failover]: results may be lost in a failover, so none may happen because the
// machine is busy.
func (f *fireFleet) startRedis() {
	f.t.Helper()
	master := redistest.Start(f.t)
	replica := redistest.Start(f.t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	f.sentinel = redistest.StartIdleSentinel(f.t, "fleet", master, 1)
	for i, s := range []*redistest.Server{master, replica} {
		f.parts = append(f.parts, &part{
			Node: check.Node{Name: fmt.Sprintf("redis-%d", i+1), Kind: check.Redis},
			kill: func() { s.Stop(f.t) }, start: func() { s.Restart(f.t) }, restart: func() { s.Restart(f.t) },
			freeze: func() { s.Freeze(f.t) }, thaw: func() { s.Thaw(f.t) }, redis: s.Addr,
		})
	}
}

// startAgent starts an agent in a separate namespace. Other agents do not see its
// processes, which die with it and use another folder at the same path.
func (f *fireFleet) startAgent(n int) {
	f.t.Helper()
	host, err := procfleet.NewHost(0, fmt.Sprintf("10.99.1.%d", n+1))
	if err != nil {
		f.t.Fatal(err)
	}
	f.hosts = append(f.hosts, host)
	own := f.t.TempDir()
	_, ip, _ := strings.Cut(host.String(), ":")
	p := f.run(fmt.Sprintf("agent-%d", n+1), check.Agent, "unshare",
		"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", `mount --bind "$1" "$2" && shift 2 && exec "$@"`, "sh", own, f.folder,
		testenv.BuildBinary(f.t, "./cmd/procfleet-agent"), "--nats", f.natsURL, "--cloud", "0", "--ip", ip, "--data", f.t.TempDir())
	p.marks = own
	kill := p.kill
	p.kill = func() {
		from := time.Now()
		kill()
		f.deaths = append(f.deaths, check.Loss{Span: check.Span{From: from, Until: time.Now()}, Host: host})
	}
	// The first process, not the agent, receives the signals.
	p.freeze, p.thaw = p.kill, p.start
	p.restart = func() { p.kill(); p.start() }
}

func (f *fireFleet) targets() []check.Node {
	var nodes []check.Node
	for _, p := range f.parts {
		nodes = append(nodes, p.Node)
	}
	return nodes
}

func (f *fireFleet) load() check.Config {
	absent, err := procfleet.NewHost(0, "10.99.1.99")
	if err != nil {
		f.t.Fatal(err)
	}
	return check.Config{
		Run: "fire", Seed: *fireSeed, Pause: 300 * time.Millisecond, Timeout: 40 * time.Second,
		Dispatchers: f.dispatchers, Hosts: f.hosts, Absent: []procfleet.Host{absent}, Folder: f.folder, Marks: f.marks, Deaths: func() []check.Loss { return f.deaths },
		Publish: check.Publisher(testenv.Connect(f.t, f.natsURL)), Log: f.t.Logf,
	}
}

// marks reads the marks of all hosts.
func (f *fireFleet) marks() ([]check.Mark, error) {
	var marks []check.Mark
	for i := range f.parts {
		p := f.parts[i]
		if p.Kind != check.Agent {
			continue
		}
		data, err := os.ReadFile(filepath.Join(p.marks, check.MarkFile))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		host := f.hosts[len(f.hosts)-len(f.parts)+i] // agents are the last parts
		for line := range strings.Lines(string(data)) {
			m, err := check.ParseMark(host, strings.TrimSuffix(line, "\n"))
			if err != nil {
				return nil, err
			}
			marks = append(marks, m)
		}
	}
	return marks, nil
}

// play causes the faults of a step and ends them. The parts share a network, so it
// freezes a part in place of a disconnection or a delay.
func (f *fireFleet) play(step check.Step) {
	f.t.Logf("%s: %s", time.Now().Format(time.TimeOnly), step)
	f.rest(step.After)
	for _, blow := range step.NodeFaults {
		p := f.part(blow.Node)
		switch blow.Fault {
		case check.Kill:
			p.kill()
			p.heal = p.start
		case check.Restart:
			p.restart()
			p.heal = func() {}
		case check.Pause, check.Cut, check.Delay:
			p.freeze()
			p.heal = p.thaw
		}
	}
	for _, blow := range step.NodeFaults {
		if at := f.part(blow.Node).redis; at != "" && at == f.master() && blow.Fault != check.Restart {
			f.failover(at)
		}
	}
	f.rest(min(step.For, *fireFault))
	for _, blow := range step.NodeFaults {
		f.part(blow.Node).heal()
	}
}

// rest waits for the duration of a fault.
func (f *fireFleet) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.t.Context().Done():
	}
}

func (f *fireFleet) part(n check.Node) *part {
	for _, p := range f.parts {
		if p.Node == n {
			return p
		}
	}
	f.t.Fatalf("no part %s", n.Name)
	return nil
}

// settle waits until Redis has a replica, and every dispatcher is ready and lists
// every host.
func (f *fireFleet) settle() {
	f.t.Helper()
	testenv.Eventually(f.t, finishTimeout, func() bool { return f.replicated() || pause() }, "Redis has a replica")
	for _, dispatcher := range f.dispatchers {
		c := &client{t: f.t, url: dispatcher}
		testenv.Eventually(f.t, finishTimeout, func() bool {
			status, _, ok := c.call("GET", "/readyz", "", nil)
			return ok && status == 200 && len(c.hosts()) >= len(f.hosts) || pause()
		}, dispatcher+" is ready and knows every host")
	}
}

// withSentinel calls ask with a connection to Sentinel.
func (f *fireFleet) withSentinel(ask func(context.Context, *redis.SentinelClient) error) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), startTimeout)
	defer cancel()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: f.sentinel.Addr})
	defer func() { _ = sentinel.Close() }() // the reply is already read
	return ask(ctx, sentinel)
}

// master returns the address of the master that Sentinel names, or "".
func (f *fireFleet) master() (addr string) {
	_ = f.withSentinel(func(ctx context.Context, sentinel *redis.SentinelClient) error {
		parts, err := sentinel.GetMasterAddrByName(ctx, "fleet").Result()
		if err == nil {
			addr = net.JoinHostPort(parts[0], parts[1])
		}
		return err
	})
	return addr
}

// failover makes Sentinel promote the replica of a master.
func (f *fireFleet) failover(master string) {
	f.t.Helper()
	testenv.Eventually(f.t, finishTimeout, func() bool {
		if now := f.master(); now != "" && now != master {
			return true
		}
		_ = f.withSentinel(func(ctx context.Context, sentinel *redis.SentinelClient) error {
			return sentinel.Failover(ctx, "fleet").Err() // refused while one is in progress
		})
		return pause()
	}, "Sentinel promotes the replica")
}

// replicated reports whether the master that Sentinel names has a replica with all
// its data.
func (f *fireFleet) replicated() bool {
	addr := f.master()
	if addr == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), startTimeout)
	defer cancel()
	master := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = master.Close() }() // the reply is already read
	info, err := master.Info(ctx, "replication").Result()
	return err == nil && strings.Contains(info, "role:master") && strings.Contains(info, "state=online")
}

// pause returns false after a moment.
func pause() bool {
	<-time.After(200 * time.Millisecond)
	return false
}
