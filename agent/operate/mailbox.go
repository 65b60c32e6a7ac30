package operate

import (
	"slices"
	"sync"
)

// mailbox hands messages to one goroutine. Putting never blocks: whoever has
// news must not wait for a process's goroutine. What may pile up is bounded by
// what sends it: 32 waiting operations, and one timer, look, death and reminder
// of each kind.
type mailbox struct {
	mu       sync.Mutex
	messages []message
	closed   bool
	arrived  chan struct{} // capacity 1
}

// message is anything that a process's goroutine reacts to.
type message any

func newMailbox() *mailbox { return &mailbox{arrived: make(chan struct{}, 1)} }

// put leaves a message, which is dropped when nobody reads any more.
func (m *mailbox) put(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.messages = append(m.messages, msg)
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

// remind leaves a message unless an equal one waits already: a goroutine that
// waits for a full disk for days must not find one for every few seconds of it.
func (m *mailbox) remind(msg message) {
	m.mu.Lock()
	waits := slices.Contains(m.messages, msg)
	m.mu.Unlock()
	if !waits {
		m.put(msg)
	}
}

// take empties the mailbox.
func (m *mailbox) take() []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	messages := m.messages
	m.messages = nil
	return messages
}

// closeIfEmpty closes the mailbox unless a message waits.
func (m *mailbox) closeIfEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = m.closed || len(m.messages) == 0
	return m.closed
}
