//go:build linux

// Package e2e tests procfleet from outside: built binaries, a NATS server and a
// Redis as processes that tests kill, real agents and real supervised processes. It
// imports no package of the roles, except the list of published calls, each of
// which it must call.
package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestMain(m *testing.M) {
	testenv.WithoutProfile()
	defer testenv.CleanUp()
	m.Run()
}

// startTimeout is the timeout until a program is ready, on a busy machine.
const startTimeout = 60 * time.Second

// unlessLong returns the size of everyday runs, or that of `make test/long`.
func unlessLong(everyday, long int) int {
	if testenv.IsLong() {
		return long
	}
	return everyday
}

// fleet is a whole system of separate processes. Tests start dispatchers and
// workers.
type fleet struct {
	t        *testing.T
	broker   *broker
	keys     *keys
	redis    *redistest.Server
	agents   []*agent
	procs    *procs
	programs struct {
		procfleet, agent string
	}
}

// newFleet starts NATS, Redis and agents, and returns when all agents have
// announced themselves.
func newFleet(t *testing.T, agents int) *fleet {
	t.Helper()
	f := &fleet{t: t, broker: startBroker(t), keys: newKeys(t), redis: redistest.Start(t), procs: newProcs(t)}
	f.programs.procfleet = testenv.BuildBinary(t, "./cmd/procfleet")
	f.programs.agent = testenv.BuildBinary(t, "./cmd/procfleet-agent")
	f.addAgents(agents)
	return f
}

// addAgents starts the agents of a fleet without agents.
func (f *fleet) addAgents(n int) {
	f.t.Helper()
	for i := range n {
		a := &agent{fleet: f, ip: fmt.Sprintf("10.99.0.%d", i+1), data: f.t.TempDir()}
		a.identity = f.keys.identity(a.host())
		f.agents = append(f.agents, a)
	}
	for _, a := range f.agents {
		a.start()
	}
	for _, a := range f.agents {
		a.waitReady()
	}
}

func crashAt(point string) []string {
	if point == "" {
		return nil
	}
	return []string{crashpoint.Variable + "=" + point}
}

// broker is a separate nats-server, built from its module.
type broker struct {
	t     *testing.T
	child *testenv.Child
	args  []string
	URL   string
	addr  string
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	port := strconv.Itoa(testenv.FreePort(t))
	b := &broker{t: t, addr: net.JoinHostPort("127.0.0.1", port)}
	b.URL = "nats://" + b.addr
	b.args = []string{"-a", "127.0.0.1", "-p", port, "-js", "-sd", t.TempDir()}
	b.Start()
	return b
}

// Start starts the server, after [broker.Kill] with the same data.
func (b *broker) Start() {
	b.t.Helper()
	b.child = testenv.StartChild(b.t, nil, testenv.BuildBinary(b.t, "github.com/nats-io/nats-server/v2"), b.args...)
	testenv.Eventually(b.t, startTimeout, func() bool {
		conn, err := net.DialTimeout("tcp", b.addr, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, "NATS listens")
}

// Kill sends SIGKILL to the server.
func (b *broker) Kill() { b.child.Kill() }

// agent is a procfleet-agent process with a data folder that survives it.
type agent struct {
	fleet    *fleet
	ip       string
	data     string
	identity string // path of the file
	args     []string
	child    *testenv.Child
}

func (a *agent) host() string { return "0:" + a.ip }

func (a *agent) start(env ...string) {
	a.fleet.t.Helper()
	a.child = testenv.StartChild(a.fleet.t, env, a.fleet.programs.agent,
		append([]string{"--nats", a.fleet.broker.URL, "--identity", a.identity, "--data", a.data}, a.args...)...)
}

// stop stops the agent gracefully.
func (a *agent) stop() {
	a.fleet.t.Helper()
	stop(a.fleet.t, a.child)
}

func (a *agent) waitReady() {
	a.fleet.t.Helper()
	a.child.WaitOutput(a.fleet.t, startTimeout, "accepting commands")
}

// dispatcher starts a dispatcher and waits until it responds. The returned client
// uses its URL.
func (f *fleet) dispatcher(crash string, args ...string) (*testenv.Child, *client) {
	f.t.Helper()
	addr := testenv.FreeAddress(f.t)
	child := testenv.StartChild(f.t, crashAt(crash), f.programs.procfleet,
		append([]string{"dispatcher", "--http", addr, "--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL()}, args...)...)
	child.WaitHTTP(f.t, startTimeout, "http://"+addr+"/readyz")
	return child, &client{t: f.t, url: "http://" + addr}
}

// stop stops a role gracefully.
func stop(t *testing.T, role *testenv.Child) {
	t.Helper()
	role.Signal(syscall.SIGTERM)
	role.Wait(t, startTimeout)
}

// worker starts a worker.
func (f *fleet) worker(crash string, args ...string) *testenv.Child {
	f.t.Helper()
	return testenv.StartChild(f.t, crashAt(crash), f.programs.procfleet,
		append([]string{"worker", "--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL()}, args...)...)
}

// hosts returns the hosts of the first n agents.
func (f *fleet) hosts(n int) []string {
	var hosts []string
	for _, a := range f.agents[:n] {
		hosts = append(hosts, a.host())
	}
	return hosts
}

// waitListed waits until the dispatcher lists n hosts.
func (f *fleet) waitListed(c *client, n int) {
	f.t.Helper()
	testenv.Eventually(f.t, startTimeout, func() bool { return len(c.hosts()) >= n }, fmt.Sprintf("%d hosts are listed", n))
}

// tempFile returns a path in a new folder of the test.
func tempFile(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(t.TempDir(), name)
}
