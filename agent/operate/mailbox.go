package operate

import (
	"context"
	"slices"
	"sync"
	"time"
)

// mailbox passes messages to one goroutine at a time, which it starts when a message arrives
// and none runs: thousands of idle actors need no goroutine. put never blocks, so that a
// sender does not wait for the actor. The senders bound the waiting messages: 32 operations,
// and one timer, search, death and reminder of each kind.
type mailbox struct {
	begin func() // starts a goroutine that calls take until it returns no messages

	mu       sync.Mutex
	messages []message
	busy     bool // a goroutine of begin runs, or open was not called yet
	closed   bool
}

// message is a value that an actor handles.
type message any

// newMailbox returns a mailbox that stores its messages until open is called.
func newMailbox(begin func()) *mailbox { return &mailbox{begin: begin, busy: true} }

func (m *mailbox) open() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
	m.handOver()
}

// put adds a message. A closed mailbox drops it.
func (m *mailbox) put(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(msg)
}

// remind adds a message unless an equal one waits: an actor that a full disk blocks for days
// must not accumulate a reminder from each sweep.
func (m *mailbox) remind(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.messages, msg) {
		m.add(msg)
	}
}

func (m *mailbox) add(msg message) {
	if m.closed {
		return
	}
	m.messages = append(m.messages, msg)
	m.handOver()
}

// handOver starts the goroutine if messages wait and none runs. The caller holds mu.
func (m *mailbox) handOver() {
	if !m.busy && len(m.messages) > 0 {
		m.busy = true
		m.begin()
	}
}

// take removes and returns all messages. A goroutine that receives none must end.
func (m *mailbox) take() []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	messages := m.messages
	m.messages = nil
	m.busy = len(messages) > 0
	return messages
}

// close drops all waiting messages and all later ones.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.messages = true, nil
}

// closeIfEmpty closes the mailbox unless a message waits, and reports whether it is closed.
func (m *mailbox) closeIfEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = m.closed || len(m.messages) == 0
	return m.closed
}

// drain counts the work in progress, and admits no work after it was closed.
type drain struct {
	mu      sync.Mutex
	closed  bool
	running int
	idle    chan struct{} // closed when the drain is closed and no work runs
}

func newDrain() *drain { return &drain{idle: make(chan struct{})} }

// begin reports whether work may begin. Call end when it has ended.
func (d *drain) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.running++
	return true
}

func (d *drain) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.closed && d.running == 0 {
		close(d.idle)
	}
}

// wait closes the drain and waits until no work is in progress, limit has passed or ctx ends.
func (d *drain) wait(ctx context.Context, limit time.Duration) {
	d.mu.Lock()
	if !d.closed && d.running == 0 {
		close(d.idle)
	}
	d.closed = true
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-d.idle:
	case <-ctx.Done():
	}
}
