package operate

import (
	"context"
	"slices"
	"sync"
	"time"
)

// mailbox passes messages to one goroutine at a time, which it starts when a message
// arrives and none runs: thousands of quiet processes need no stacks. Putting never
// blocks, since a sender must not wait for a process's goroutine. The senders bound what
// waits: 32 operations, and one timer, search, death and reminder of each kind.
type mailbox struct {
	begin func() // starts a goroutine that calls take until it returns nothing

	mu       sync.Mutex
	messages []message
	busy     bool // such a goroutine runs, or open was not called yet
	closed   bool
}

// message is anything that an actor handles.
type message any

// newMailbox returns a mailbox that keeps its messages until open is called.
func newMailbox(begin func()) *mailbox { return &mailbox{begin: begin, busy: true} }

// open starts the handling of messages.
func (m *mailbox) open() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
	m.handOver()
}

// put adds a message, which is dropped if the mailbox is closed.
func (m *mailbox) put(msg message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(msg)
}

// remind adds a message unless an equal one waits: a goroutine that waits for a full disk
// for days must not receive one for every few seconds of it.
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

// take empties the mailbox. The goroutine that receives nothing has to end.
func (m *mailbox) take() []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	messages := m.messages
	m.messages = nil
	m.busy = len(messages) > 0
	return messages
}

// close drops all messages from now on, including those that wait.
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

// drain counts the work that runs, and lets nothing begin after it was closed.
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

// wait closes the drain and waits until no work runs, at most for limit and until ctx
// ends.
func (d *drain) wait(ctx context.Context, limit time.Duration) {
	d.mu.Lock()
	if !d.closed && d.running == 0 {
		close(d.idle)
	}
	d.closed = true
	d.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-d.idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}
