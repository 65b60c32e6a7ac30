package simulate

import "time"

// remembered is how many items a link keeps for repeats. Workers ask again
// within seconds, so older ones are only needed by a sweep that lost results.
const remembered = 256 << 10

type itemID struct {
	task string
	item int
}

// memory is when the latest items were accepted; the oldest are forgotten.
type memory struct {
	accepted map[itemID]time.Time
	ring     []itemID
	next     int
	task     string // the last one seen, so that its items share one string
}

func newMemory() *memory { return &memory{accepted: make(map[itemID]time.Time)} }

func (m *memory) recall(task string, item int) (time.Time, bool) {
	at, known := m.accepted[itemID{task, item}]
	return at, known
}

func (m *memory) remember(task string, item int, at time.Time) {
	if m.task != task {
		m.task = task
	}
	id := itemID{m.task, item}
	if len(m.ring) < remembered {
		m.ring = append(m.ring, id)
	} else {
		delete(m.accepted, m.ring[m.next])
		m.ring[m.next] = id
		m.next = (m.next + 1) % remembered
	}
	m.accepted[id] = at
}
