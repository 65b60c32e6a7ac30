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

// hintOver is the body of the hint that a task has ended; other hints are empty.
const hintOver = "over"

// Hint notifies followers of a task that the task changed or, with over, ended. It
// only appends to the connection's buffer, and costs little without followers. A
// hint may be lost; the task store is authoritative.
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

// Follow calls hinted for every hint about a task. All tasks share one goroutine,
// so hinted must not block. Follow waits up to 1 s until the NATS server has the
// subscription; without a connection it returns at once, and hints arrive after
// the reconnect. The caller must call stop once; no call of hinted begins after
// stop has returned.
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
		_ = b.hints.conn.FlushWithContext(ctx) // followers tolerate late and lost hints
	}
	return func() { b.hints.remove(sub) }, nil
}

// listener receives the hints of all followed tasks, with a subscription for each
// task. One goroutine handles all hints; it runs while any task is followed.
type listener struct {
	conn *nats.Conn

	mu       sync.Mutex
	hinted   map[*nats.Subscription]func(over bool)
	arriving chan *nats.Msg
	quit     chan struct{}
}

// maxWaitingHints is the capacity of the queue of hints; further hints are dropped.
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
	_ = sub.Unsubscribe() // fails only on a closed connection, which has no subscriptions
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

// settingsEach is the largest number of hosts that are notified individually when
// their settings change; for more hosts, one message notifies all agents.
const settingsEach = 500

// SettingsChanged notifies the agents of hosts, or all agents if hosts is empty,
// that their settings changed. It only appends to the connection's buffer. A lost
// notification is tolerable: agents also request their settings periodically. The
// message to all agents is unsigned, since agents share no key.
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
