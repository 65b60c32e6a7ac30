//go:build !race

package simulation

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/worker"
)

// withinSeeds is the number of histories within which a defect must be found.
const withinSeeds = 150

// found runs histories with a defect until one violates one of the rules. It begins with
// a seed that mostly does.
func found(t *testing.T, seed uint64, d *defect, rules ...check.Rule) {
	t.Helper()
	for s := seed; s < seed+withinSeeds; s++ {
		o := explore(t, s, d, randomFaults)
		if o.err != nil {
			t.Fatal(o)
		}
		if slices.ContainsFunc(o.broken, func(v check.Violation) bool { return slices.Contains(rules, v.Rule) }) {
			t.Logf("violation in history %d: %s", s, o)
			return
		}
	}
	t.Fatalf("no violation in %d histories", withinSeeds)
}

var incarnation = regexp.MustCompile(`,"incarnation":"[^"]*"`)

// TestClonedAgentIsFound removes the incarnations of agents and their check for
// another agent at the start.
func TestClonedAgentIsFound(t *testing.T) {
	found(t, 20, &defect{mangle: func(_ *node, f *frame) (drop bool) {
		if !f.body {
			return false
		}
		if !f.fromBus && strings.HasPrefix(f.subject(), "procfleet.agent.") {
			return true
		}
		if end := bytes.TrimSuffix(f.payload, []byte("\r\n")); incarnation.Match(end) {
			f.payload = incarnation.ReplaceAll(f.payload, nil)
		}
		return false
	}}, check.RuleExplained, check.RuleState, check.RuleTwice, check.RuleTrue, check.RuleOrder)
}

var serverTime = regexp.MustCompile(`"server_time":"[^"]*"`)

// TestWorkByAWrongClockIsFound changes the server's time in the messages to agents
// to the time of their hosts, so that agents judge commands by it.
func TestWorkByAWrongClockIsFound(t *testing.T) {
	found(t, 1, &defect{mangle: func(n *node, f *frame) (drop bool) {
		if f.fromBus && serverTime.Match(f.payload) {
			own := n.host.wall().UTC().Format(time.RFC3339Nano)
			f.payload = serverTime.ReplaceAll(f.payload, []byte(`"server_time":"`+own+`"`))
		}
		return false
	}}, check.RuleExpired)
}

// TestSweepStalledByAClockStepIsFound hides the visits that are due after the time
// to which the store's clock stepped back.
func TestSweepStalledByAClockStepIsFound(t *testing.T) {
	due := func(visits []taskstore.Visit, now time.Time) []taskstore.Visit {
		return slices.DeleteFunc(visits, func(v taskstore.Visit) bool { return v.At.After(now) })
	}
	found(t, 3, &defect{store: &storeDefect{due: due}}, check.RuleEnds, check.RuleInTime, check.RuleNotified)
}

// TestTaskThatNeverEndsIsFound removes the entry of a new task in the sweep index.
func TestTaskThatNeverEndsIsFound(t *testing.T) {
	created := func(ctx context.Context, s taskstore.Store, id procfleet.TaskID) {
		_ = s.Settle(ctx, taskstore.Visit{Task: id})
	}
	found(t, 1, &defect{store: &storeDefect{created: created}}, check.RuleEnds)
}

// TestTooWideAWindowIsFound lets the store release one host more than the window of a rollout.
func TestTooWideAWindowIsFound(t *testing.T) {
	found(t, 2, &defect{store: &storeDefect{plan: func(p *procfleet.RolloutPlan) { p.Window++ }}}, check.RuleWindow)
}

// TestAQueueThatExpiresEarlyIsFound ends waiting operations after half of their time.
func TestAQueueThatExpiresEarlyIsFound(t *testing.T) {
	found(t, 1, &defect{store: &storeDefect{plan: func(p *procfleet.RolloutPlan) { p.Queue /= 2 }}}, check.RuleQueued)
}

// TestAnIgnoredBudgetIsFound lets a rollout go on after failures.
func TestAnIgnoredBudgetIsFound(t *testing.T) {
	found(t, 2, &defect{store: &storeDefect{plan: func(p *procfleet.RolloutPlan) { p.Failures = procfleet.AnyFailures }}}, check.RuleBudget)
}

// TestDeliveryWithoutAReleaseIsFound lets workers deliver the items of a rollout that the store has
// not released.
func TestDeliveryWithoutAReleaseIsFound(t *testing.T) {
	begun := func(b *taskstore.Begun) {
		if b.Task.Rollout != nil {
			b.Open = nil
			for i := range b.Chunk.Items {
				b.Open = append(b.Open, i)
			}
		}
	}
	found(t, 6, &defect{store: &storeDefect{begun: begun}}, check.RuleWindow)
}

// TestSweepThatDoesNotKeepUpIsFound lets the sweep visit one task of a shard every
// two minutes.
func TestSweepThatDoesNotKeepUpIsFound(t *testing.T) {
	found(t, 1, &defect{worker: func(cfg *worker.Config) {
		cfg.Limits.SweepTasks = 1
		cfg.Timing.Sweep.Round = 2 * time.Minute
	}}, check.RuleInTime)
}
