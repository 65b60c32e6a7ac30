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

// Kind is what a node does.
type Kind string

// The kinds of nodes.
const (
	NATS       Kind = "nats"
	Leaf       Kind = "leaf" // the NATS server of the second cloud area
	Redis      Kind = "redis"
	Sentinel   Kind = "sentinel"
	Dispatcher Kind = "dispatcher"
	Worker     Kind = "worker"
	Agent      Kind = "agent"
	Light      Kind = "light" // a program that stands for many agents
)

// Node is one container. Its methods block until docker or the kernel has done
// what they say; what the other nodes make of it takes longer. They may be
// called by several goroutines. Each can be taken back by another, and all of
// them by Heal.
type Node struct {
	Name string // of the container too, after the fleet's own name
	Kind Kind
	IP   string // in the network that leads to the middle
	// Host is the name of an agent's host for callers, such as "0:10.1.2.3"; ""
	// for other nodes.
	Host string

	fleet *Fleet
	ports []port // networks, the one that leads to the middle first
	marks string // folder of this machine that an agent has as [MarkFolder]

	mu     sync.Mutex
	faults faults
	deaths []Span
	wipes  []Span
}

// Span is a stretch of time.
type Span struct{ From, Until time.Time }

// faults are what was done to a node and not taken back.
type faults struct {
	down, paused, cut bool
	walls             []*Node // whom it cannot reach although it is connected
	delay             *delay
	clock             time.Duration // by how much its wall clock is ahead
	full              bool          // its disk
}

// port is a node's place in a network.
type port struct{ network, ip string }

// stopTimeout is how long a node may take to stop in good order.
const stopTimeout = 40 * time.Second

func (n *Node) String() string { return n.Name }

// Kill ends the node by SIGKILL. It stays down until Start. A wall or a delay
// goes with it.
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
	n.died(began)
	n.faults.down = true
	n.newNamespace()
	return nil
}

// Start starts a node that was killed, with the data it left.
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

// Restart stops the node in good order (SIGTERM, and SIGKILL after 40 s) and
// starts it again.
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
	n.died(began)
	n.faults.down = false
	n.newNamespace()
	return nil
}

// died notes that every process of the node ended since then.
func (n *Node) died(since time.Time) { n.deaths = append(n.deaths, Span{since, time.Now()}) }

// Deaths returns when every process of the node ended: within each span once.
func (n *Node) Deaths() []Span {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.deaths)
}

// Wipes returns when the node lost what it had stored.
func (n *Node) Wipes() []Span {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.wipes)
}

// newNamespace forgets what went with the network namespace of a container
// that has ended.
func (n *Node) newNamespace() {
	n.faults.walls = nil
	n.faults.delay.close()
	n.faults.delay = nil
}

// Pause freezes every process of the node where it is; its connections stay
// open. Resume thaws it.
func (n *Node) Pause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.paused || n.faults.down {
		return nil
	}
	if err := n.docker("pause", n.container()); err != nil {
		return err
	}
	n.faults.paused = true
	return nil
}

// Resume is the end of Pause.
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

// Cut takes the node out of its network: of the leaf node the one that leads
// to the middle, so that its cloud area is away with its agents. Connections
// are not closed, nothing passes on them any more.
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

// Wall drops what the node sends to the others and what they send to it. It
// replaces an earlier wall, and ends with the node or with Mend.
func (n *Node) Wall(others ...*Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.down {
		return nil
	}
	if err := n.raze(); err != nil {
		return err
	}
	n.faults.walls = others
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

func (n *Node) raze() error {
	for _, o := range n.faults.walls {
		err := errors.Join(
			n.inNetwork("iptables", "-w", "-D", "INPUT", "-s", o.IP, "-j", "DROP"),
			n.inNetwork("iptables", "-w", "-D", "OUTPUT", "-d", o.IP, "-j", "DROP"))
		if err != nil {
			return err
		}
	}
	n.faults.walls = nil
	return nil
}

// Mend is the end of Cut and of Wall. The node has its address of before.
func (n *Node) Mend() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.raze(); err != nil {
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

// Delay holds back every packet that the node sends to the others (to anybody,
// if none are given) by d, give or take as much as jitter, in the order in which
// they were sent. It replaces an earlier delay, and ends with the node or with
// Undelay.
func (n *Node) Delay(d, jitter time.Duration, others ...*Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.down {
		return nil
	}
	if err := n.undelay(); err != nil {
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

// Undelay is the end of Delay.
func (n *Node) Undelay() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.undelay()
}

func (n *Node) undelay() error {
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

// Heal takes back whatever was done to the node.
func (n *Node) Heal() error {
	return errors.Join(n.EmptyDisk(), n.SetClock(0), n.Resume(), n.Start(), n.Mend(), n.Undelay())
}

// Hurt reports whether something was done to the node that was not taken back.
func (n *Node) Hurt() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faults
	return f.down || f.paused || f.cut || len(f.walls) > 0 || f.delay != nil || f.clock != 0 || f.full
}

// Exec runs a program in the node and returns what it wrote.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "docker", append([]string{"exec", n.container()}, args...)...)
}

// MarkFolder is the folder of an agent's host in which programs leave their
// marks. It is on this machine's disk, and outlives the node.
const MarkFolder = "/srv/marks"

// Marks returns the lines of a file in an agent's [MarkFolder], in the order
// in which they were written; none if there is no such file. It works whatever
// was done to the node.
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

// Leave writes a file into an agent's [MarkFolder].
func (n *Node) Leave(file, text string) error {
	return os.WriteFile(filepath.Join(n.marks, file), []byte(text), 0o644)
}

// Logs returns the end of what the node wrote.
func (n *Node) Logs(ctx context.Context, lines int) (string, error) {
	return run(ctx, "docker", "logs", "--tail", fmt.Sprint(lines), n.container())
}

func (n *Node) container() string { return n.fleet.name + "-" + n.Name }

func (n *Node) docker(args ...string) error {
	_, err := run(context.Background(), "docker", args...) // a fault is never left half done
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

// pid of the node's first process on this machine.
func (n *Node) pid() (string, error) {
	return run(context.Background(), "docker", "inspect", "--format", "{{.State.Pid}}", n.container())
}
