package simulate

import "time"

// remembered is the number of items that a link retains for repeated commands.
// Workers repeat within seconds; a sweep that misses results may need older items.
const remembered = 256 << 10

type itemID struct {
	task string
	item int
}

// memory holds the acceptance times of the latest items and evicts the oldest.
type memory struct {
	accepted map[itemID]time.Time
	ring     []itemID
	next     int
	task     string // latest task, whose items share this string
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
