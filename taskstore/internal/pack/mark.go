package pack

import "github.com/procfleet/procfleet"

// Mark is the state byte of one item: its state and, by case, whose word it
// is: lower case for the agent's own, upper case for the server's.
type Mark byte

// The marks. Cancelled and rejected items keep their state whatever comes, so
// they have one mark each.
const (
	Pending   Mark = 'p'
	Delivered Mark = 'd'
	Succeeded Mark = 's'
	Unchanged Mark = 'u'
	Failed    Mark = 'f'
	// Unreachable and TimedOut are the server's word in practice.
	Unreachable Mark = 'X'
	TimedOut    Mark = 'T'
	Cancelled   Mark = 'c'
	Rejected    Mark = 'r'
)

// Marks returns the mark bytes of a state, the agent's first; none for an
// unknown state.
func Marks(s procfleet.State) string {
	switch s {
	case procfleet.StatePending:
		return "p"
	case procfleet.StateDelivered:
		return "d"
	case procfleet.StateSucceeded:
		return "sS"
	case procfleet.StateUnchanged:
		return "uU"
	case procfleet.StateFailed:
		return "fF"
	case procfleet.StateUnreachable:
		return "xX"
	case procfleet.StateTimedOut:
		return "tT"
	case procfleet.StateCancelled:
		return "c"
	case procfleet.StateRejected:
		return "r"
	}
	return ""
}

// MarkOf returns the mark of an item whose result is r.
func MarkOf(r *procfleet.Result) Mark {
	marks := Marks(r.State())
	if r.Rank == procfleet.RankServer {
		return Mark(marks[len(marks)-1])
	}
	return Mark(marks[0])
}

// State is the item state that m stands for; an unknown mark is pending, so
// that its item is delivered rather than forgotten.
func (m Mark) State() procfleet.State {
	const lower = 'a' - 'A'
	switch byte(m) | lower {
	case 'd':
		return procfleet.StateDelivered
	case 's':
		return procfleet.StateSucceeded
	case 'u':
		return procfleet.StateUnchanged
	case 'f':
		return procfleet.StateFailed
	case 'x':
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

// Rank is the rank of the item's result. Cancelled and rejected count as the
// highest, because nothing replaces them.
func (m Mark) Rank() procfleet.Rank {
	switch {
	case m == Pending, m == Delivered:
		return procfleet.RankNone
	case m < 'a':
		return procfleet.RankServer
	default:
		return procfleet.RankAgent
	}
}

// ReplacedBy reports whether r becomes the result of an item that has mark m,
// and whether it is then late.
func (m Mark) ReplacedBy(r *procfleet.Result) (replaced, late bool) {
	replaced = r.Reason != "" && min(r.Rank, procfleet.RankAgent) > m.Rank()
	return replaced, replaced && m.Rank() > procfleet.RankNone
}

// Open reports whether the item awaits a result.
func (m Mark) Open() bool { return m.Rank() == procfleet.RankNone }

// OpenItems returns the indexes of the marks that await a result, and those
// of them that an agent has accepted.
func OpenItems(marks []byte) (open, delivered []int) {
	for i, m := range marks {
		if !Mark(m).Open() {
			continue
		}
		open = append(open, i)
		if Mark(m) == Delivered {
			delivered = append(delivered, i)
		}
	}
	return open, delivered
}
