package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is what a node of a fleet does.
type Kind string

// The kinds of nodes.
const (
	NATS       Kind = "nats"
	Leaf       Kind = "leaf" // the NATS server of a cloud area of its own
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

// Fault is what is done to a node.
type Fault string

// The faults. Each but Restart is taken back after a while.
const (
	Kill    Fault = "kill"    // SIGKILL; then start it with the data it left
	Pause   Fault = "pause"   // SIGSTOP; then SIGCONT
	Cut     Fault = "cut"     // out of the network; then back with its address
	Delay   Fault = "delay"   // its packets are held back
	Restart Fault = "restart" // SIGTERM, and start it again
)

// Blow is a fault on one node.
type Blow struct {
	Fault Fault
	Node  Node
}

func (b Blow) String() string { return fmt.Sprintf("%s %s", b.Fault, b.Node.Name) }

// Step is one or two faults at the same time. Before the next step all is
// taken back, and the fleet has settled.
type Step struct {
	After time.Duration // to wait before, while nothing is wrong
	Blows []Blow
	For   time.Duration // until they are taken back
}

func (s Step) String() string {
	blows := make([]string, len(s.Blows))
	for i, b := range s.Blows {
		blows[i] = b.String()
	}
	return fmt.Sprintf("after %v: %s, for %v", s.After, strings.Join(blows, " and "), s.For)
}

// MayFailOver is whether the store may fail over because of the step; see
// [Load.Failover].
func (s Step) MayFailOver() bool {
	return slices.ContainsFunc(s.Blows, func(b Blow) bool { return b.Node.Kind == Redis || b.Node.Kind == Sentinel })
}

// Schedule is a list of steps. Printed, it says how to have it again.
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
	// mostAfter and mostFor bound the times of random steps; longFor is what
	// some faults last instead, longer than a worker may keep a message to itself.
	mostAfter = 5 * time.Second
	leastFor  = 2 * time.Second
	mostFor   = 15 * time.Second
	longFor   = 45 * time.Second
	longEvery = 8
	// pairEvery is how many steps there are for one of two faults at a time.
	pairEvery = 3
)

// NewSchedule makes so many steps from a seed: the same seed, nodes and number
// make the same schedule, and a larger number the same beginning. A step takes
// the fleet nothing that it cannot do without: of NATS servers, of Sentinels and
// of Redis servers each only one, since the others are the majority, and the
// copy. Nodes must have at least one.
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
	step.Blows = []Blow{randomBlow(random, nodes)}
	if pair := random.IntN(pairEvery) == 0; pair {
		if others := survivable(step.Blows[0].Node, nodes); len(others) > 0 {
			step.Blows = append(step.Blows, randomBlow(random, others))
		}
	}
	return step
}

// upTo is a time from zero to most, in tenths of a second.
func upTo(random *rand.Rand, most time.Duration) time.Duration {
	const tenth = 100 * time.Millisecond
	return time.Duration(random.Int64N(int64(most/tenth)+1)) * tenth
}

// randomBlow draws the kind first: few nodes of a kind are hit as often as
// many of another.
func randomBlow(random *rand.Rand, nodes []Node) Blow {
	var kinds []Kind
	for _, n := range nodes {
		if !slices.Contains(kinds, n.Kind) {
			kinds = append(kinds, n.Kind)
		}
	}
	kind := kinds[random.IntN(len(kinds))]
	of := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Kind != kind })
	faults := []Fault{Kill, Pause, Cut, Delay, Restart}
	return Blow{faults[random.IntN(len(faults))], of[random.IntN(len(of))]}
}

// survivable returns the nodes that the fleet can do without while the first
// one is away.
func survivable(first Node, nodes []Node) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool {
		return n == first || n.Kind == first.Kind && vital(n.Kind)
	})
}

// vital is whether only one node of a kind may be away at a time.
func vital(k Kind) bool { return k == NATS || k == Redis || k == Sentinel }

// Rolling is an upgrade: every node is restarted in good order, one after the
// other, in the order in which they are given.
func Rolling(nodes []Node) Schedule {
	var s Schedule
	for _, n := range nodes {
		s.Steps = append(s.Steps, Step{Blows: []Blow{{Restart, n}}})
	}
	return s
}
