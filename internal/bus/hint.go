package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// hintOver is the body of the hint that a task is over; all others are empty.
const hintOver = "over"

// Hint notifies followers of a task that it changed, or that it is over. It only
// writes into the connection's buffer, and costs next to nothing without
// followers. It may be lost; the task store has the change.
func (b *Bus) Hint(id procfleet.TaskID, over bool) error {
	n, err := id.Number()
	if err != nil {
		return err
	}
	var body []byte
	if over {
		body = []byte(hintOver)
	}
	if err := b.hints.conn.Publish(hintSubject(n), body); err != nil {
		return publishError("hint", err)
	}
	return nil
}

// Follow calls hinted for every hint about a task, from one goroutine for all
// tasks, so hinted must not block. It returns when the server knows, for which
// it waits up to a second; without a server it returns at once, and hints come
// when the server is back. The caller calls stop once; hinted is not called
// afterwards, but for a call that has begun.
func (b *Bus) Follow(ctx context.Context, id procfleet.TaskID, hinted func(over bool)) (stop func(), err error) {
	n, err := id.Number()
	if err != nil {
		return nil, err
	}
	sub, err := b.hints.add(hintSubject(n), hinted)
	if err != nil {
		return nil, fmt.Errorf("follow task %s: %w", id, err)
	}
	if b.hints.conn.IsConnected() {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = b.hints.conn.FlushWithContext(ctx) // followers expect late and lost hints
	}
	return func() { b.hints.remove(sub) }, nil
}

// listener receives the hints of all followed tasks: one subscription for each,
// and one goroutine for all, which runs while there are any.
type listener struct {
	conn *nats.Conn

	mu       sync.Mutex
	hinted   map[*nats.Subscription]func(over bool)
	arriving chan *nats.Msg
	quit     chan struct{}
}

// maxWaitingHints is how many hints may wait; further ones are lost.
const maxWaitingHints = 4096

func (l *listener) add(subject string, hinted func(over bool)) (*nats.Subscription, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hinted) == 0 {
		l.arriving, l.quit = make(chan *nats.Msg, maxWaitingHints), make(chan struct{})
	}
	sub, err := l.conn.ChanSubscribe(subject, l.arriving)
	if err != nil {
		return nil, err
	}
	if len(l.hinted) == 0 {
		l.hinted = make(map[*nats.Subscription]func(bool))
		go l.run(l.arriving, l.quit)
	}
	l.hinted[sub] = hinted
	return sub, nil
}

func (l *listener) remove(sub *nats.Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hinted, sub)
	_ = sub.Unsubscribe() // fails when the connection is closed, and the subscription with it
	if len(l.hinted) == 0 {
		close(l.quit)
	}
}

func (l *listener) run(arriving <-chan *nats.Msg, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case msg := <-arriving:
			if hinted := l.of(msg.Sub); hinted != nil {
				hinted(string(msg.Data) == hintOver)
			}
		}
	}
}

func (l *listener) of(sub *nats.Subscription) func(over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hinted[sub]
}

// settingsEach is how many hosts get a message of their own when their settings
// change; more hosts are notified by one message to all.
const settingsEach = 500

// SettingsChanged notifies the agents of hosts, or all agents if hosts is empty,
// that their settings changed. It only writes into the connection's buffer, and
// may be lost: agents also request their settings periodically. The message to
// all is not signed, since they have no common key.
func (b *Bus) SettingsChanged(hosts []procfleet.Host) error {
	data, err := agentproto.Encode(&agentproto.SettingsChanged{Header: agentproto.Header{
		Type: agentproto.TypeSettingsChanged, ID: uuid.NewString(), Sent: time.Now().UTC(),
	}})
	if err != nil {
		return err
	}
	if n := len(hosts); n == 0 || n > settingsEach {
		return b.notifyAgents(&nats.Msg{Subject: agentproto.SettingsChangedAll, Data: data})
	}
	message := fleetkey.Message{Purpose: agentproto.TypeSettingsChanged, Body: data}
	for _, h := range hosts {
		msg := nats.NewMsg(agentproto.AgentSubject(int64(h.Cloud), h.Addr))
		msg.Data = data
		b.keys().Sign(msg.Header, h.String(), &message)
		if err := b.notifyAgents(msg); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bus) notifyAgents(msg *nats.Msg) error {
	if err := b.js.Conn().PublishMsg(msg); err != nil {
		return publishError("notify agents of changed settings", err)
	}
	return nil
}
