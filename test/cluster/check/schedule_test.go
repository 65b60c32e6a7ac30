package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// someNodes draws a fleet of up to four nodes of each kind, at least one in total.
func someNodes(t *rapid.T) []Node {
	nodes := []Node{{"worker-0", Worker}}
	for _, k := range []Kind{NATS, Leaf, Redis, Sentinel, Dispatcher, Worker, Agent} {
		for n := range rapid.IntRange(0, 4).Draw(t, string(k)) {
			nodes = append(nodes, Node{fmt.Sprintf("%s-%d", k, n+1), k})
		}
	}
	return nodes
}

// TestScheduleKeepsAMajority checks for all seeds that each step has one or two
// faults of different nodes, and that the fleet can lose both.
func TestScheduleKeepsAMajority(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := someNodes(t)
		s := NewSchedule(rapid.Uint64().Draw(t, "seed"), nodes, 20)
		if len(s.Steps) != 20 {
			t.Fatalf("%d steps, want 20", len(s.Steps))
		}
		for _, step := range s.Steps {
			checkStep(t, step, nodes)
		}
	})
}

func checkStep(t *rapid.T, step Step, nodes []Node) {
	t.Helper()
	if step.After < 0 || step.After > mostAfter || step.For < leastFor || step.For > longFor {
		t.Errorf("%s: times out of bounds", step)
	}
	if n := len(step.NodeFaults); n != 1 && n != 2 {
		t.Fatalf("%s: %d concurrent faults", step, n)
	}
	hit := map[Kind]int{}
	for _, b := range step.NodeFaults {
		hit[b.Node.Kind]++
		if !slices.Contains(nodes, b.Node) {
			t.Errorf("%s: unknown node", step)
		}
		if !strings.Contains(step.String(), b.String()) {
			t.Errorf("%q lacks %q", step, b)
		}
	}
	if hit[NATS] > 1 || hit[Redis] > 1 || hit[Sentinel] > 1 {
		t.Errorf("%s: too many nodes of a kind", step)
	}
	if len(step.NodeFaults) == 2 && step.NodeFaults[0].Node == step.NodeFaults[1].Node {
		t.Errorf("%s: two faults of one node", step)
	}
	if want := hit[Redis]+hit[Sentinel] > 0; step.MayFailOver() != want {
		t.Errorf("%s: MayFailOver is %t, want %t", step, step.MayFailOver(), want)
	}
}

// TestScheduleIsRepeatable checks that a seed always gives the same schedule, and
// that a longer schedule has the same first steps.
func TestScheduleIsRepeatable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, seed := someNodes(t), rapid.Uint64().Draw(t, "seed")
		short, long := NewSchedule(seed, nodes, 5), NewSchedule(seed, nodes, 9)
		if !reflect.DeepEqual(short.Steps, long.Steps[:5]) {
			t.Fatalf("%s\nis not the beginning of\n%s", short, long)
		}
		if !strings.Contains(short.String(), fmt.Sprint(seed)) {
			t.Fatalf("%s lacks its seed", short)
		}
	})
}

// TestScheduleHasEveryFault checks that a long schedule has every fault of
// every kind of node, alone and in pairs.
func TestScheduleHasEveryFault(t *testing.T) {
	t.Parallel()
	kinds := []Kind{NATS, Leaf, Redis, Sentinel, Dispatcher, Worker, Agent}
	var nodes []Node
	for _, k := range kinds {
		nodes = append(nodes, Node{string(k) + "-1", k}, Node{string(k) + "-2", k})
	}
	done, pairs := map[string]bool{}, 0
	for _, step := range NewSchedule(1, nodes, 500).Steps {
		pairs += len(step.NodeFaults) - 1
		for _, b := range step.NodeFaults {
			done[b.String()] = true
		}
	}
	if want := len(nodes) * 5; len(done) != want {
		t.Errorf("%d of %d faults", len(done), want)
	}
	if pairs < 100 {
		t.Errorf("%d of 500 steps have two faults", pairs)
	}
}
