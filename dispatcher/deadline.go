package dispatcher

import (
	"time"

	"github.com/procfleet/procfleet"
)

// hostCommands is how many commands an agent runs at once.
const hostCommands = 64

// budget is how long something may take on a responsive host.
type budget = time.Duration

// budget bounds the time that one host may need: operations on one process
// follow each other, processes run beside each other, at most hostCommands at
// once. A schedule that never idles needs no longer than its longest chain
// plus an even share of the whole.
func (c *cutter) budget(w *hostWork) budget {
	if len(w.items) == 1 {
		return c.itemBudget(&w.items[0])
	}
	var longest, all budget
	chains := make(map[string]budget, len(w.items))
	for i := range w.items {
		it := &w.items[i]
		own := c.itemBudget(it)
		chains[it.key] += own
		all += own
		longest = max(longest, chains[it.key])
	}
	if len(chains) <= hostCommands {
		return longest
	}
	return longest + all/hostCommands
}

func (c *cutter) itemBudget(it *plannedItem) budget {
	return c.specs.specs[it.Spec].Budget(it.Action)
}

// timeout is how long a task may take: what its caller said, or what its
// busiest host may need plus slack, and never more than the vocabulary allows.
func timeout(wanted time.Duration, longest budget, slack time.Duration) time.Duration {
	if wanted != 0 {
		return wanted
	}
	return min(longest+slack, procfleet.MaxTimeout)
}
