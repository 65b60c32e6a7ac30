//go:build linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is the function of a node.
type Kind string

// Kinds of nodes.
const (
	NATS       Kind = "nats"
	Leaf       Kind = "leaf" // NATS server of the second cloud area
	Redis      Kind = "redis"
	Sentinel   Kind = "sentinel"
	Dispatcher Kind = "dispatcher"
	Worker     Kind = "worker"
	Agent      Kind = "agent"
	Light      Kind = "light" // program with many simulated agents
)

// Node is one container. Its methods are safe for concurrent use and block until
// docker or the kernel has executed them; the other nodes may notice later. A
// second method ends each fault, and Repair ends all faults of a node.
type Node struct {
	Name string // also the suffix of the container's name
	Kind Kind
	IP   string // address in the network that leads to the central NATS servers
	// Host is the name of an agent's host for callers, such as "0:10.1.2.3"; "" for
	// other nodes.
	Host string

	fleet *Fleet
	ports []port // networks; the one that leads to the central NATS servers first
	marks string // folder on this machine, mounted as [MarkFolder] of an agent

	mu     sync.Mutex
	faults faults
	deaths []Span
	wipes  []Span
}

// Span is a period of time.
type Span struct{ From, Until time.Time }

// faults are the active faults of a node.
type faults struct {
	down, paused, cut bool
	isolatedFrom      []*Node // nodes that it cannot reach although it is connected
	delay             *delay
	clock             time.Duration // offset of its wall clock
	full              bool          // its disk is full
}

// port is a node's address in a network.
type port struct{ network, ip string }

// stopTimeout limits a graceful stop.
const stopTimeout = 40 * time.Second

// freezeTimeout limits the attempts to pause a node.
const freezeTimeout = 20 * time.Second

func (n *Node) String() string { return n.Name }

// Kill sends SIGKILL to the node, which stays down until Start. It also ends an
// isolation or a delay.
func (n *Node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.down {
		return nil
	}
	if err := n.unpause(); err != nil {
		return err
	}
	began := time.Now()
	if err := n.docker("kill", "--signal", "KILL", n.container()); err != nil {
		return err
	}
	n.recordDeath(began)
	n.faults.down = true
	n.newNamespace()
	return nil
}

// Start starts a killed node with its remaining data.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.start()
}

func (n *Node) start() error {
	if !n.faults.down {
		return nil
	}
	if err := n.docker("start", n.container()); err != nil {
		return err
	}
	n.faults.down = false
	return nil
}

// Restart stops the node with SIGTERM, after 40 s with SIGKILL, and starts it
// again.
func (n *Node) Restart() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.unpause(); err != nil {
		return err
	}
	began := time.Now()
	if err := n.docker("restart", "--time", fmt.Sprint(int(stopTimeout.Seconds())), n.container()); err != nil {
		return err
	}
	n.recordDeath(began)
	n.faults.down = false
	n.newNamespace()
	return nil
}

// recordDeath records that every process of the node ended between since and now.
func (n *Node) recordDeath(since time.Time) { n.deaths = append(n.deaths, Span{since, time.Now()}) }

// Deaths returns the times at which every process of the node ended: once within
// each span.
func (n *Node) Deaths() []Span {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.deaths)
}

// Wipes returns the times at which the node lost its stored data.
func (n *Node) Wipes() []Span {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.wipes)
}

// newNamespace resets the faults that ended with the network namespace of a
// container.
func (n *Node) newNamespace() {
	n.faults.isolatedFrom = nil
	n.faults.delay.close()
	n.faults.delay = nil
}

// Pause freezes every process of the node, if necessary in several attempts; its
// connections stay open. Resume ends it.
func (n *Node) Pause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.paused || n.faults.down {
		return nil
	}
	// The freezer of cgroup v1 gives up after some milliseconds if a process is in
	// an uninterruptible call, such as a write to a slow disk, and leaves all of them
	// running.
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	if err := until(ctx, func() error { return n.docker("pause", n.container()) }); err != nil {
		return err
	}
	n.faults.paused = true
	return nil
}

// Resume ends Pause.
func (n *Node) Resume() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unpause()
}

func (n *Node) unpause() error {
	if !n.faults.paused {
		return nil
	}
	if err := n.docker("unpause", n.container()); err != nil {
		return err
	}
	n.faults.paused = false
	return nil
}

// Cut disconnects the node from its network. It disconnects the leaf node from the
// network of the central NATS servers, so that its cloud area is unreachable.
// Connections stay open, but no packet passes.
func (n *Node) Cut() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.cut {
		return nil
	}
	if err := n.docker("network", "disconnect", n.ports[0].network, n.container()); err != nil {
		return err
	}
	n.faults.cut = true
	return nil
}

// Isolate drops all packets between the node and the others. It replaces an earlier
// isolation, and ends with the node or with Reconnect.
func (n *Node) Isolate(others ...*Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.down {
		return nil
	}
	if err := n.endIsolation(); err != nil {
		return err
	}
	n.faults.isolatedFrom = others
	for _, o := range others {
		err := errors.Join(
			n.inNetwork("iptables", "-w", "-I", "INPUT", "-s", o.IP, "-j", "DROP"),
			n.inNetwork("iptables", "-w", "-I", "OUTPUT", "-d", o.IP, "-j", "DROP"))
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) endIsolation() error {
	for _, o := range n.faults.isolatedFrom {
		err := errors.Join(
			n.inNetwork("iptables", "-w", "-D", "INPUT", "-s", o.IP, "-j", "DROP"),
			n.inNetwork("iptables", "-w", "-D", "OUTPUT", "-d", o.IP, "-j", "DROP"))
		if err != nil {
			return err
		}
	}
	n.faults.isolatedFrom = nil
	return nil
}

// Reconnect ends Cut and Isolate. The node gets its previous address.
func (n *Node) Reconnect() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.endIsolation(); err != nil {
		return err
	}
	if !n.faults.cut {
		return nil
	}
	if err := n.docker("network", "connect", "--ip", n.ports[0].ip, n.ports[0].network, n.container()); err != nil {
		return err
	}
	n.faults.cut = false
	return nil
}

// Delay delays every packet from the node to the others (to all nodes if there are
// none) by d plus or minus up to jitter, and keeps their order. It replaces an
// earlier delay, and ends with the node or with EndDelay.
func (n *Node) Delay(d, jitter time.Duration, others ...*Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.down {
		return nil
	}
	if err := n.endDelay(); err != nil {
		return err
	}
	pid, err := n.pid()
	if err != nil {
		return err
	}
	if n.faults.delay, err = startDelay(pid, d, jitter); err != nil {
		return fmt.Errorf("delay %s: %w", n, err)
	}
	for _, rule := range delayRules(others) {
		if err := n.inNetwork("iptables", append([]string{"-w", "-A"}, rule...)...); err != nil {
			return err
		}
		n.faults.delay.rules = append(n.faults.delay.rules, rule)
	}
	return nil
}

// EndDelay ends Delay.
func (n *Node) EndDelay() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.endDelay()
}

func (n *Node) endDelay() error {
	if n.faults.delay == nil {
		return nil
	}
	for _, rule := range n.faults.delay.rules {
		if err := n.inNetwork("iptables", append([]string{"-w", "-D"}, rule...)...); err != nil {
			return err
		}
	}
	n.faults.delay.close()
	n.faults.delay = nil
	return nil
}

// Repair ends all faults of the node.
func (n *Node) Repair() error {
	return errors.Join(n.EmptyDisk(), n.SetClock(0), n.Resume(), n.Start(), n.Reconnect(), n.EndDelay())
}

// Faulty reports whether the node has an active fault.
func (n *Node) Faulty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faults
	return f.down || f.paused || f.cut || len(f.isolatedFrom) > 0 || f.delay != nil || f.clock != 0 || f.full
}

// Exec runs a program in the node and returns its output.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "docker", append([]string{"exec", n.container()}, args...)...)
}

// MarkFolder is the folder of an agent's host into which programs write their
// marks. It is on this machine's disk and survives the node.
const MarkFolder = "/srv/marks"

// Marks returns the lines of a file in an agent's [MarkFolder] in the order of
// writing, or none if there is no such file. It works during every fault.
func (n *Node) Marks(file string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(n.marks, file))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("marks of %s: %w", n, err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' }), nil
}

// WriteFile writes a file into an agent's [MarkFolder].
func (n *Node) WriteFile(file, text string) error {
	return os.WriteFile(filepath.Join(n.marks, file), []byte(text), 0o644)
}

// Logs returns the last lines of the node's output.
func (n *Node) Logs(ctx context.Context, lines int) (string, error) {
	return run(ctx, "docker", "logs", "--tail", fmt.Sprint(lines), n.container())
}

func (n *Node) container() string { return n.fleet.name + "-" + n.Name }

func (n *Node) docker(args ...string) error {
	_, err := run(context.Background(), "docker", args...) // a started fault is completed even if the test ends
	return err
}

// inNetwork runs a program of this machine in the node's network namespace.
func (n *Node) inNetwork(program string, args ...string) error {
	pid, err := n.pid()
	if err != nil {
		return err
	}
	_, err = run(context.Background(), "nsenter", append([]string{"-t", pid, "-n", program}, args...)...)
	return err
}

// pid returns the pid of the node's first process on this machine.
func (n *Node) pid() (string, error) {
	return run(context.Background(), "docker", "inspect", "--format", "{{.State.Pid}}", n.container())
}
