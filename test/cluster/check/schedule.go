package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is the function of a node.
type Kind string

// Kinds of nodes.
const (
	NATS       Kind = "nats"
	Leaf       Kind = "leaf" // NATS server of a separate cloud area
	Redis      Kind = "redis"
	Sentinel   Kind = "sentinel"
	Dispatcher Kind = "dispatcher"
	Worker     Kind = "worker"
	Agent      Kind = "agent"
)

// Node is a node of a fleet.
type Node struct {
	Name string
	Kind Kind
}

// Fault is a fault of a node.
type Fault string

// Faults. Each except Restart ends after a while.
const (
	Kill    Fault = "kill"    // SIGKILL; later a start with the remaining data
	Pause   Fault = "pause"   // SIGSTOP; later SIGCONT
	Cut     Fault = "cut"     // disconnected from the network; later connected with the same address
	Delay   Fault = "delay"   // its packets are delayed
	Restart Fault = "restart" // SIGTERM and a start
)

// NodeFault is a fault of one node.
type NodeFault struct {
	Fault Fault
	Node  Node
}

func (b NodeFault) String() string { return fmt.Sprintf("%s %s", b.Fault, b.Node.Name) }

// Step is one or two concurrent faults. Before the next step all faults end and the
// fleet settles.
type Step struct {
	After      time.Duration // pause before the faults
	NodeFaults []NodeFault
	For        time.Duration // duration of the faults
}

func (s Step) String() string {
	blows := make([]string, len(s.NodeFaults))
	for i, b := range s.NodeFaults {
		blows[i] = b.String()
	}
	return fmt.Sprintf("after %v: %s, for %v", s.After, strings.Join(blows, " and "), s.For)
}

// MayFailOver reports whether the store may fail over because of the step; see
// [Load.Failover].
func (s Step) MayFailOver() bool {
	return slices.ContainsFunc(s.NodeFaults, func(b NodeFault) bool { return b.Node.Kind == Redis || b.Node.Kind == Sentinel })
}

// Schedule is a list of steps. Its text contains the seed that repeats it.
type Schedule struct {
	Seed  uint64
	Steps []Step
}

func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "schedule of seed %d:", s.Seed)
	for i, step := range s.Steps {
		fmt.Fprintf(&b, "\n%3d. %s", i+1, step)
	}
	return b.String()
}

const (
	// mostAfter and mostFor limit the times of random steps. longFor is the
	// duration of some faults; it exceeds the acknowledgement timeout of a worker's
	// messages.
	mostAfter = 5 * time.Second
	leastFor  = 2 * time.Second
	mostFor   = 15 * time.Second
	longFor   = 45 * time.Second
	longEvery = 8
	// pairEvery is the number of steps per step with two faults.
	pairEvery = 3
)

// NewSchedule creates steps from a seed. The same seed, nodes and number give the
// same schedule, and a larger number has the same first steps. A step affects only
// nodes that the fleet can lose: at most one NATS server, one Sentinel and one
// Redis server, so that a majority or a copy remains. There must be at least one
// node.
func NewSchedule(seed uint64, nodes []Node, steps int) Schedule {
	random := rand.New(rand.NewPCG(seed, 1))
	s := Schedule{Seed: seed}
	for range steps {
		s.Steps = append(s.Steps, randomStep(random, nodes))
	}
	return s
}

func randomStep(random *rand.Rand, nodes []Node) Step {
	step := Step{
		After: upTo(random, mostAfter),
		For:   leastFor + upTo(random, mostFor-leastFor),
	}
	if random.IntN(longEvery) == 0 {
		step.For = longFor
	}
	step.NodeFaults = []NodeFault{randomFault(random, nodes)}
	if pair := random.IntN(pairEvery) == 0; pair {
		if others := survivable(step.NodeFaults[0].Node, nodes); len(others) > 0 {
			step.NodeFaults = append(step.NodeFaults, randomFault(random, others))
		}
	}
	return step
}

// upTo returns a duration from zero to most, in tenths of a second.
func upTo(random *rand.Rand, most time.Duration) time.Duration {
	const tenth = 100 * time.Millisecond
	return time.Duration(random.Int64N(int64(most/tenth)+1)) * tenth
}

// randomFault first draws the kind, so all kinds are equally frequent, regardless of
// their numbers of nodes.
func randomFault(random *rand.Rand, nodes []Node) NodeFault {
	var kinds []Kind
	for _, n := range nodes {
		if !slices.Contains(kinds, n.Kind) {
			kinds = append(kinds, n.Kind)
		}
	}
	kind := kinds[random.IntN(len(kinds))]
	of := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Kind != kind })
	faults := []Fault{Kill, Pause, Cut, Delay, Restart}
	return NodeFault{faults[random.IntN(len(faults))], of[random.IntN(len(of))]}
}

// survivable returns the nodes that the fleet can lose in addition to the first
// one.
func survivable(first Node, nodes []Node) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool {
		return n == first || n.Kind == first.Kind && vital(n.Kind)
	})
}

// vital reports whether only one node of a kind may be faulty at a time.
func vital(k Kind) bool { return k == NATS || k == Redis || k == Sentinel }
