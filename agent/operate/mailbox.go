package operate

import (
	"slices"
	"sync"
)

// mailbox hands messages to one goroutine at a time, which it begins when a
// message comes and none runs: thousands of quiet processes need no stacks.
// Putting never blocks: a sender must not wait for a process's goroutine. What may pile up is bounded by what sends it: 32 waiting
// operations, and one timer, look, death and reminder of each kind.
type mailbox struct {
	begin func() // starts a goroutine that calls take until it returns nothing

	mu       sync.Mutex
	messages []message
	busy     bool // such a goroutine runs, or open was not called yet
	closed   bool
}

// message is anything that a process's goroutine reacts to.
type message any

// newMailbox returns a mailbox that keeps its messages until open is called.
func newMailbox(begin func()) *mailbox { return &mailbox{begin: begin, busy: true} }

// open has the messages handled from now on.
func (m *mailbox) open() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
	m.handOver()
}

// put leaves a message, which is dropped once the mailbox is closed.
func (m *mailbox) put(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(msg)
}

// remind leaves a message unless an equal one waits already: a goroutine that
// waits for a full disk for days must not find one for every few seconds of it.
func (m *mailbox) remind(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.messages, msg) {
		m.add(msg)
	}
}

// add needs mu.
func (m *mailbox) add(msg message) {
	if m.closed {
		return
	}
	m.messages = append(m.messages, msg)
	m.handOver()
}

// handOver needs mu.
func (m *mailbox) handOver() {
	if !m.busy && len(m.messages) > 0 {
		m.busy = true
		m.begin()
	}
}

// take empties the mailbox. The goroutine that gets nothing has to end.
func (m *mailbox) take() []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	messages := m.messages
	m.messages = nil
	m.busy = len(messages) > 0
	return messages
}

// close drops all messages from now on, those that wait included.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.messages = true, nil
}

// closeIfEmpty closes the mailbox unless a message waits.
func (m *mailbox) closeIfEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = m.closed || len(m.messages) == 0
	return m.closed
}
