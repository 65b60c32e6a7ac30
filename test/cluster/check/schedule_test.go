package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// someNodes draws a fleet of up to four nodes of each kind, at least one in all.
func someNodes(t *rapid.T) []Node {
	nodes := []Node{{"worker-0", Worker}}
	for _, k := range []Kind{NATS, Leaf, Redis, Sentinel, Dispatcher, Worker, Agent} {
		for n := range rapid.IntRange(0, 4).Draw(t, string(k)) {
			nodes = append(nodes, Node{fmt.Sprintf("%s-%d", k, n+1), k})
		}
	}
	return nodes
}

// TestScheduleTakesNothingVital: whatever the seed, each step is one or two
// faults on different nodes of the fleet, of which it can do without both.
func TestScheduleTakesNothingVital(t *testing.T) {
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
		t.Errorf("%s: the times are out of bounds", step)
	}
	if n := len(step.Blows); n != 1 && n != 2 {
		t.Fatalf("%s: %d faults at a time", step, n)
	}
	hit := map[Kind]int{}
	for _, b := range step.Blows {
		hit[b.Node.Kind]++
		if !slices.Contains(nodes, b.Node) {
			t.Errorf("%s: there is no such node", step)
		}
		if !strings.Contains(step.String(), b.String()) {
			t.Errorf("%q does not say %q", step, b)
		}
	}
	if hit[NATS] > 1 || hit[Redis] > 1 || hit[Sentinel] > 1 {
		t.Errorf("%s: too many of a kind", step)
	}
	if len(step.Blows) == 2 && step.Blows[0].Node == step.Blows[1].Node {
		t.Errorf("%s: one node twice", step)
	}
	if want := hit[Redis]+hit[Sentinel] > 0; step.MayFailOver() != want {
		t.Errorf("%s: may fail over %t, want %t", step, step.MayFailOver(), want)
	}
}

// TestScheduleIsRepeatable: a seed always makes the same schedule, and more
// steps begin with the same ones.
func TestScheduleIsRepeatable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, seed := someNodes(t), rapid.Uint64().Draw(t, "seed")
		short, long := NewSchedule(seed, nodes, 5), NewSchedule(seed, nodes, 9)
		if !reflect.DeepEqual(short.Steps, long.Steps[:5]) {
			t.Fatalf("%s\nis not the beginning of\n%s", short, long)
		}
		if !strings.Contains(short.String(), fmt.Sprint(seed)) {
			t.Fatalf("%s does not say its seed", short)
		}
	})
}

// TestScheduleComesToEverything: a long schedule does every fault to every
// kind of node, alone and in pairs.
func TestScheduleComesToEverything(t *testing.T) {
	t.Parallel()
	kinds := []Kind{NATS, Leaf, Redis, Sentinel, Dispatcher, Worker, Agent}
	var nodes []Node
	for _, k := range kinds {
		nodes = append(nodes, Node{string(k) + "-1", k}, Node{string(k) + "-2", k})
	}
	done, pairs := map[string]bool{}, 0
	for _, step := range NewSchedule(1, nodes, 500).Steps {
		pairs += len(step.Blows) - 1
		for _, b := range step.Blows {
			done[b.String()] = true
		}
	}
	if want := len(nodes) * 5; len(done) != want {
		t.Errorf("%d of %d faults were done", len(done), want)
	}
	if pairs < 100 {
		t.Errorf("%d of 500 steps are pairs", pairs)
	}
}

func TestRollingRestartsEachNodeOnce(t *testing.T) {
	t.Parallel()
	nodes := []Node{{"nats-1", NATS}, {"redis-1", Redis}, {"agent-1", Agent}}
	var rolled []Node
	for _, step := range Rolling(nodes).Steps {
		if len(step.Blows) != 1 || step.Blows[0].Fault != Restart {
			t.Fatalf("%s is no restart of one node", step)
		}
		rolled = append(rolled, step.Blows[0].Node)
	}
	if !slices.Equal(rolled, nodes) {
		t.Errorf("rolled %v, want %v", rolled, nodes)
	}
}
