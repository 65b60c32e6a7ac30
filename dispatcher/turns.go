package dispatcher

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
)

// While a long request is read and cut it takes several times the memory that
// it takes afterwards, when it waits for the store. So few have a turn at that
// at a time; short ones need none, and do not wait for the long.
const (
	turnsAtOnce = 2
	turnBody    = 64 << 10 // bytes of a body from which on it needs one
	turnItems   = 4 << 10  // items of a task from which on it does
)

// inTurn does what only takes the processor, in its turn if it is long.
func inTurn[T any](ctx context.Context, room *semaphore.Weighted, long bool, do func() (T, error)) (T, error) {
	if long {
		if room.Acquire(ctx, 1) != nil {
			var none T
			return none, context.Cause(ctx)
		}
		defer room.Release(1)
	}
	return do()
}

func (s *submitter) cut(ctx context.Context, operations []procfleet.Operation) (*plan, error) {
	items := 0
	for i := range operations {
		items += len(operations[i].Targets)
	}
	return inTurn(ctx, s.turns, items > turnItems, func() (*plan, error) { return cut(operations) })
}
