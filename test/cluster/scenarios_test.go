//go:build cluster && linux

package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
)

// scenario is one fault under load.
type scenario struct {
	name  string
	story string // what the name does not say of the fault, for docs/reference/faults.md
	// failsOver states that the fault may cause a fail-over of Redis.
	failsOver bool
	// cluster is the story on a fleet with a Redis Cluster; empty if the scenario
	// does not run there.
	cluster string
	cut     bool // -cut runs the scenario; it sets no clock
	// do causes the faults and blocks for their duration. The caller ends faults
	// that remain.
	do func(s *stage) error
}

// stage is a fleet under load in a scenario.
type stage struct {
	*fleet.Fleet
	ctx  context.Context
	log  func(format string, args ...any)
	load *check.Load // nil without one
}

// hold waits for d.
func (s *stage) hold(d time.Duration) error {
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

const (
	// short is the duration of most faults: connections and leases time out within
	// it.
	short = 12 * time.Second
	// long exceeds the acknowledgement timeout of a worker's messages, and the time
	// after which NATS considers a peer disconnected.
	long = 30 * time.Second
)

// scenarios run in this order on one fleet, which settles after each.
var scenarios = []scenario{
	{
		name: "the leader of the operations stream is killed", cut: true, story: "for 12 s",
		do: func(s *stage) error { return s.leader("PROCFLEET_OPS", (*fleet.Node).Kill, short) },
	},
	{
		name: "all workers are paused", story: "all three, while agents send results",
		do: func(s *stage) error {
			return errors.Join(s.all((*fleet.Node).Pause, s.Nodes(fleet.Worker)...), s.hold(long))
		},
	},
	{
		name: "a NATS server is cut off",
		do:   func(s *stage) error { return s.during(long, (*fleet.Node).Cut, "nats-2") },
	},
	{
		name: "all NATS servers restart at once",
		do:   func(s *stage) error { return s.all((*fleet.Node).Restart, s.Nodes(fleet.NATS)...) },
	},
	{
		name: "the Redis master is killed", cluster: "its replica is promoted",
		story: "a Sentinel promotes the replica", failsOver: true,
		do: func(s *stage) error { return s.master((*fleet.Node).Kill, long) },
	},
	{
		name: "the Redis master is paused and resumes", cluster: "its replica is promoted; the old master still considers itself a master",
		cut: true, story: "a Sentinel promotes the replica; the old master still considers itself the master", failsOver: true,
		do: func(s *stage) error { return s.master((*fleet.Node).Pause, long) },
	},
	{
		name: "the Redis master is cut off from replica and Sentinels", story: "there are two masters until the old one is demoted", failsOver: true,
		do: func(s *stage) error {
			return s.master(func(m *fleet.Node) error { return m.Isolate(s.others(m, fleet.Redis, fleet.Sentinel)...) }, long)
		},
	},
	{
		name: "the Redis replica is killed", story: "for 12 s; no replica confirms writes", failsOver: true,
		do: func(s *stage) error { return s.replica((*fleet.Node).Kill, short) },
	},
	{
		name: "a dispatcher is killed", story: "for 12 s",
		do: func(s *stage) error { return s.during(short, (*fleet.Node).Kill, "dispatcher-1") },
	},
	{
		name: "one dispatcher is killed after the other", story: "the second one 6 s after the first; both are down for 6 s",
		do: func(s *stage) error {
			return errors.Join(s.begin((*fleet.Node).Kill, "dispatcher-1"), s.hold(short/2), s.during(short/2, (*fleet.Node).Kill, "dispatcher-2"))
		},
	},
	{
		name: "a dispatcher is cut off from NATS",
		do:   func(s *stage) error { return s.isolate(long, "dispatcher-1", fleet.NATS) },
	},
	{
		name: "a worker is killed", story: "for 12 s",
		do: func(s *stage) error { return s.during(short, (*fleet.Node).Kill, "worker-1") },
	},
	{
		name: "a worker is paused beyond the acknowledgement timeout", cut: true, story: "then it resumes chunks that other workers have processed",
		do: func(s *stage) error { return s.during(long, (*fleet.Node).Pause, "worker-1") },
	},
	{
		name: "a worker is cut off from Redis",
		do:   func(s *stage) error { return s.isolate(long, "worker-2", fleet.Redis, fleet.Sentinel) },
	},
	{
		name: "a worker is cut off from NATS",
		do:   func(s *stage) error { return s.isolate(long, "worker-3", fleet.NATS) },
	},
	{
		name: "two workers are killed at once", story: "two of three, for 12 s",
		do: func(s *stage) error { return s.during(short, (*fleet.Node).Kill, "worker-1", "worker-3") },
	},
	{
		name: "agents are killed during commands", cut: true, story: "two agents, with all processes of their hosts, three times",
		do: func(s *stage) error {
			for range 3 {
				if err := s.during(short/4, (*fleet.Node).Kill, "agent-1", "agent-12"); err != nil {
					return err
				}
				if err := errors.Join(s.repair("agent-1", "agent-12"), s.hold(short/4)); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "agents are paused", story: "two hosts with all their processes",
		do: func(s *stage) error { return s.during(long, (*fleet.Node).Pause, "agent-2", "agent-11") },
	},
	{
		name: "a cloud area is disconnected", story: "for 60 s, longer than the tasks' timeout: items of its hosts end with 117 or with their true result",
		do: func(s *stage) error { return s.during(2*long, (*fleet.Node).Cut, "leaf") },
	},
	{
		name: "the leaf node is killed", story: "for 12 s",
		do: func(s *stage) error { return s.during(short, (*fleet.Node).Kill, "leaf") },
	},
	{
		name: "Redis is slow", story: "100 to 300 ms per packet",
		do: func(s *stage) error { return s.during(long, slower(200*time.Millisecond), "redis-1", "redis-2") },
	},
	{
		name: "the link to a cloud area is slow", story: "150 to 450 ms per packet",
		do: func(s *stage) error { return s.during(long, slower(300*time.Millisecond), "leaf") },
	},
	{
		name: "a NATS server and the Redis master are killed at once", story: "the NATS server leads `PROCFLEET_EVENTS`", failsOver: true,
		do: func(s *stage) error {
			return errors.Join(s.leader("PROCFLEET_EVENTS", (*fleet.Node).Kill, 0), s.master((*fleet.Node).Kill, long))
		},
	},
	{
		name: "roles fail during rollouts", failsOver: true,
		story: "five rollouts of 2,000 hosts, 20 at a time; during each, for 12 s, a worker is killed, a worker is paused, a dispatcher is killed, the leader of `PROCFLEET_OPS` is killed, or the Redis master is killed",
		do: func(s *stage) error {
			return s.inTurn(
				s.duringRollout(func() error { return s.during(short, (*fleet.Node).Kill, "worker-1") }),
				s.duringRollout(func() error { return s.during(short, (*fleet.Node).Pause, "worker-2") }),
				s.duringRollout(func() error { return s.during(short, (*fleet.Node).Kill, "dispatcher-1") }),
				s.duringRollout(func() error { return s.leader("PROCFLEET_OPS", (*fleet.Node).Kill, short) }),
				s.duringRollout(func() error { return s.master((*fleet.Node).Kill, short) }),
			)
		},
	},
	{
		name: "the fleet key is rotated", story: "a second key is added and the old one removed; after each step all agents are enrolled again",
		do: func(s *stage) error { return s.inTurn(s.AddKey, s.Enroll, s.RemoveKey, s.Enroll) },
	},
	{
		name: "the identities of two hosts are revoked", story: "during commands; they are enrolled again",
		do: func(s *stage) error {
			return errors.Join(s.Revoke(s.ctx, s.Node("agent-3"), s.Node("agent-10")), s.hold(long), s.Enroll(s.ctx))
		},
	},
	{
		name: "every node is restarted, one after the other", story: "each must be ready before the next one is restarted", failsOver: true,
		do: (*stage).restartInTurn,
	},
	{
		name: "everything restarts at once", story: "all 26 nodes", failsOver: true,
		do: func(s *stage) error { return s.all((*fleet.Node).Restart, s.FaultTargets()...) },
	},
}

// begin calls do for nodes.
func (s *stage) begin(do func(*fleet.Node) error, names ...string) error {
	var nodes []*fleet.Node
	for _, name := range names {
		nodes = append(nodes, s.Node(name))
	}
	return s.all(do, nodes...)
}

// during calls do for nodes and waits for d.
func (s *stage) during(d time.Duration, do func(*fleet.Node) error, names ...string) error {
	return errors.Join(s.begin(do, names...), s.hold(d))
}

func (s *stage) repair(names ...string) error { return s.begin((*fleet.Node).Repair, names...) }

// inTurn calls the steps one after the other, with a pause after each.
func (s *stage) inTurn(steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := errors.Join(step(s.ctx), s.hold(short/2)); err != nil {
			return err
		}
	}
	return nil
}

// duringRollout returns a step that causes a fault while a rollout releases hosts, and repairs it.
func (s *stage) duringRollout(fault func() error) func(context.Context) error {
	const window = 20
	return func(ctx context.Context) error {
		if err := s.load.Release(ctx, window); err != nil {
			return err
		}
		return errors.Join(fault(), s.Repair(), s.settle())
	}
}

// all calls do for nodes concurrently.
func (s *stage) all(do func(*fleet.Node) error, nodes ...*fleet.Node) error {
	done := make(chan error)
	for _, n := range nodes {
		go func() { done <- do(n) }()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-done)
	}
	return err
}

// leader calls do for the server that leads a stream.
func (s *stage) leader(stream string, do func(*fleet.Node) error, d time.Duration) error {
	n, err := s.StreamLeader(s.ctx, stream)
	if err != nil {
		return err
	}
	return s.during(d, do, n.Name)
}

// master calls do for the Redis master.
func (s *stage) master(do func(*fleet.Node) error, d time.Duration) error {
	n, err := s.Master(s.ctx)
	if err != nil {
		return err
	}
	return s.during(d, do, n.Name)
}

// replica calls do for a Redis replica.
func (s *stage) replica(do func(*fleet.Node) error, d time.Duration) error {
	master, err := s.Master(s.ctx)
	if err != nil {
		return err
	}
	return s.during(d, do, s.others(master, fleet.Redis)[0].Name)
}

// isolate disconnects a node from all nodes of some kinds for a while.
func (s *stage) isolate(d time.Duration, name string, kinds ...fleet.Kind) error {
	return s.during(d, func(n *fleet.Node) error { return n.Isolate(s.Nodes(kinds...)...) }, name)
}

// others returns all nodes of some kinds except one.
func (s *stage) others(but *fleet.Node, kinds ...fleet.Kind) []*fleet.Node {
	var others []*fleet.Node
	for _, n := range s.Nodes(kinds...) {
		if n != but {
			others = append(others, n)
		}
	}
	return others
}

// slower delays all packets of a node by d, plus or minus up to half of it.
func slower(d time.Duration) func(*fleet.Node) error {
	return func(n *fleet.Node) error { return n.Delay(d, d/2) }
}

// restartInTurn restarts the nodes one after the other, each when the fleet has settled.
func (s *stage) restartInTurn() error {
	for _, n := range s.Nodes(fleet.Sentinel, fleet.Redis, fleet.NATS, fleet.Leaf, fleet.Worker, fleet.Dispatcher, fleet.Agent) {
		if err := n.Restart(); err != nil {
			return err
		}
		if err := s.settle(); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until the fleet has settled, with a timeout for a busy machine.
func (s *stage) settle() error {
	const patience = 3 * time.Minute
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return s.Settled(ctx)
}
