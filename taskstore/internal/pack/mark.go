package pack

import (
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Mark is the state byte of one item. The letter is the state. Lower case means that an
// agent reported the state, upper case that the server determined it.
type Mark byte

// The marks. A canceled or rejected item never changes its state, so these states have
// a single mark.
const (
	Pending   Mark = 'p'
	Delivered Mark = 'd'
	// Waiting is the pending state of an item of a rollout that waits for its host.
	Waiting   Mark = 'w'
	Succeeded Mark = 's'
	Unchanged Mark = 'u'
	Failed    Mark = 'f'
	// Superseded is the failed state of an operation with [procfleet.RefusalSuperseded].
	Superseded Mark = 'v'
	// Unreachable and TimedOut have one mark, because in practice only the server
	// determines these states.
	Unreachable Mark = 'X'
	// Expired is the unreachable state of an item with [procfleet.RefusalExpired].
	Expired   Mark = 'E'
	TimedOut  Mark = 'T'
	Cancelled Mark = 'c'
	Rejected  Mark = 'r'
)

// Marks returns the marks of a state, the agent's mark first. It returns "" for an
// unknown state.
func Marks(s procfleet.State) string {
	switch s {
	case procfleet.StatePending:
		return "pw"
	case procfleet.StateDelivered:
		return "d"
	case procfleet.StateSucceeded:
		return "sS"
	case procfleet.StateUnchanged:
		return "uU"
	case procfleet.StateFailed:
		return "fvF"
	case procfleet.StateUnreachable:
		return "xEX"
	case procfleet.StateTimedOut:
		return "tT"
	case procfleet.StateCancelled:
		return "c"
	case procfleet.StateRejected:
		return "r"
	}
	return ""
}

// MarkOf returns the mark of an item with the result r.
func MarkOf(r *procfleet.Result) Mark {
	marks := Marks(r.State())
	if r.Refusal == procfleet.RefusalSuperseded && r.Rank == procfleet.RankAgent && r.State() == procfleet.StateFailed {
		return Superseded
	}
	if r.Refusal == procfleet.RefusalExpired && r.Rank == procfleet.RankServer && r.State() == procfleet.StateUnreachable {
		return Expired
	}
	if r.Rank == procfleet.RankServer {
		return Mark(marks[len(marks)-1])
	}
	return Mark(marks[0])
}

// State returns the item state of m. For an unknown mark it returns pending, so that
// the item is delivered instead of lost.
func (m Mark) State() procfleet.State {
	const lower = 'a' - 'A'
	switch byte(m) | lower {
	case 'd':
		return procfleet.StateDelivered
	case 's':
		return procfleet.StateSucceeded
	case 'u':
		return procfleet.StateUnchanged
	case 'f', 'v':
		return procfleet.StateFailed
	case 'x', 'e':
		return procfleet.StateUnreachable
	case 't':
		return procfleet.StateTimedOut
	case 'c':
		return procfleet.StateCancelled
	case 'r':
		return procfleet.StateRejected
	}
	return procfleet.StatePending
}

// Refusal returns the refusal of the item's result.
func (m Mark) Refusal() procfleet.Refusal {
	if m == Superseded {
		return procfleet.RefusalSuperseded
	}
	if m == Expired {
		return procfleet.RefusalExpired
	}
	return ""
}

// Rank returns the rank of the item's result. Canceled and rejected have the highest
// rank, because no result replaces them.
func (m Mark) Rank() procfleet.Rank {
	switch {
	case m == Pending, m == Delivered, m == Waiting:
		return procfleet.RankNone
	case m < 'a':
		return procfleet.RankServer
	default:
		return procfleet.RankAgent
	}
}

// ReplacedBy reports whether the result r replaces the result of an item with mark m,
// and if so, whether r is late.
func (m Mark) ReplacedBy(r *procfleet.Result) (replaced, late bool) {
	replaced = r.Reason != "" && min(r.Rank, procfleet.RankAgent) > m.Rank()
	return replaced, replaced && m.Rank() > procfleet.RankNone
}

// Open reports whether the item awaits a result.
func (m Mark) Open() bool { return m.Rank() == procfleet.RankNone }

// Active reports whether the item awaits a result and does not wait for its host.
func (m Mark) Active() bool { return m.Open() && m != Waiting }

// Remaining returns the items that no cancel of items selects.
func Remaining(items []int, cancels []taskstore.ItemCancel) []int {
	return slices.DeleteFunc(items, func(i int) bool {
		return slices.ContainsFunc(cancels, func(c taskstore.ItemCancel) bool { return slices.Contains(c.Items, i) })
	})
}

// OpenItemsFrom returns what [OpenItems] returns, for marks of the items from first on.
func OpenItemsFrom(marks []byte, first int) (open, delivered []int) {
	open, delivered = OpenItems(marks)
	for _, items := range [][]int{open, delivered} {
		for n := range items {
			items[n] += first
		}
	}
	return open, delivered
}

// OpenItems returns the indexes of the active marks, and, of these, the
// indexes of items that an agent has accepted.
func OpenItems(marks []byte) (open, delivered []int) {
	for i, m := range marks {
		if !Mark(m).Active() {
			continue
		}
		open = append(open, i)
		if Mark(m) == Delivered {
			delivered = append(delivered, i)
		}
	}
	return open, delivered
}

// Canceled returns the items that await a result, and those of them that no agent can have accepted
// although their chunk was begun: a rollout with these grants has not released them, or they wait.
func Canceled(marks []byte, grants []taskstore.Grant) (open, unsent []int) {
	for i, m := range marks {
		if !Mark(m).Open() {
			continue
		}
		open = append(open, i)
		at := slices.IndexFunc(grants, func(g taskstore.Grant) bool { return i < g.Upto })
		if at < 0 || Mark(m) == Waiting && grants[at].Begun.IsZero() {
			unsent = append(unsent, i)
		}
	}
	return open, unsent
}

// Regrant divides grants so that each chosen unit, by its first item, has a grant that change has
// made from its own. Chosen units next to each other in one grant get one.
func Regrant(grants []taskstore.Grant, units string, chosen map[int]bool, change func(*taskstore.Grant)) []taskstore.Grant {
	var out []taskstore.Grant
	from := 0
	for _, g := range grants {
		for i := from; i < g.Upto; i = out[len(out)-1].Upto {
			part := g
			part.Upto = UnitEnd(units, i)
			if chosen[i] {
				change(&part)
			}
			if i > from && chosen[i] == chosen[UnitOf(units, i-1)] {
				out = out[:len(out)-1]
			}
			out = append(out, part)
		}
		from = g.Upto
	}
	return out
}
