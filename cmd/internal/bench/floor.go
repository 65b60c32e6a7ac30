package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
)

const (
	bareStream = "PROCFLEET_BENCH"
	// The NATS user of dispatchers and workers may publish and subscribe to these subjects.
	bareSubject = "procfleet.bench.job"
	bareHosts   = "procfleet.bench.host."
	bareBatch   = 500
	bareLinks   = 8 // number of connections of the responders, as for simulated agents
	payload     = 128
	bareQueue   = 64 << 10 // maximum number of pending requests per connection; NATS drops further requests
	// patience is the time limit of each part of the floor.
	patience = 2 * time.Minute
)

// floor is the floor of a task on N hosts. Its parts are measured one after another.
type floor struct {
	request time.Duration // N request/replies on N subjects, for commands and replies
	results time.Duration // N request/replies for results and receipts; 0 if replies contain the results
	script  time.Duration // N results through a deduplicating script
}

func (f floor) sum() time.Duration { return f.request + f.results + f.script }

// bare measures floors: it calls NATS and Redis directly, without procfleet.
type bare struct {
	*lab
	hosts    int
	links    []*nats.Conn // connections of the responders
	consumer jetstream.Consumer
	round    int
	closed   chan struct{}
}

func newBare(ctx context.Context, l *lab, hosts int) (*bare, error) {
	b := &bare{lab: l, hosts: hosts, closed: make(chan struct{})}
	if err := b.open(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bare) open(ctx context.Context) (err error) {
	for range bareLinks {
		link, err := b.connect()
		if err != nil {
			return err
		}
		b.links = append(b.links, link)
	}
	if err := b.respond(); err != nil {
		return err
	}
	return b.makeStream(ctx)
}

func (b *bare) makeStream(ctx context.Context) error {
	stream, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: bareStream, Subjects: []string{bareSubject},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxBytes: 256 << 20,
	})
	if err != nil {
		return fmt.Errorf("create stream %s: %w", bareStream, err)
	}
	b.consumer, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1,
	})
	return err
}

// respond subscribes one responder per host. All responders of a connection share a
// goroutine, because one goroutine per responder would dominate the cost.
func (b *bare) respond() error {
	answer := make([]byte, payload)
	for n, link := range b.links {
		requests := make(chan *nats.Msg, bareQueue)
		for i := n; i < b.hosts; i += len(b.links) {
			if _, err := link.ChanSubscribe(bareHosts+strconv.Itoa(i), requests); err != nil {
				return err
			}
		}
		go func() {
			for {
				select {
				case msg := <-requests:
					_ = msg.Respond(answer) // the requester detects a missing reply
				case <-b.closed:
					return
				}
			}
		}()
	}
	for _, link := range b.links {
		if err := link.FlushTimeout(patience); err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) close() {
	close(b.closed)
	for _, link := range b.links {
		link.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = b.js.DeleteStream(ctx, bareStream) // the next run purges a leftover stream
}

// part is one measured part of a floor.
type part struct {
	into *time.Duration
	run  func(context.Context) error
}

// measure measures the floor of an action.
func (b *bare) measure(ctx context.Context, action procfleet.Action) (f floor, err error) {
	b.round++
	parts := []part{{&f.request, b.request}, {&f.script, b.script}}
	if action != procfleet.ActionStatus {
		parts = append(parts, part{&f.results, b.request})
	}
	err = measureParts(ctx, parts)
	return f, err
}

func measureParts(ctx context.Context, parts []part) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, p := range parts {
		begun := time.Now()
		if err := p.run(ctx); err != nil {
			return err
		}
		*p.into = time.Since(begun)
	}
	return nil
}

// request sends one request per host without waiting for replies in between.
func (b *bare) request(ctx context.Context) error {
	inbox, all := b.conn.NewInbox(), make(chan struct{})
	replies := 0
	sub, err := b.conn.Subscribe(inbox, func(*nats.Msg) {
		if replies++; replies == b.hosts {
			close(all)
		}
	})
	if err != nil {
		return err
	}
	data := make([]byte, payload)
	for i := range b.hosts {
		if err := b.conn.PublishRequest(bareHosts+strconv.Itoa(i), inbox, data); err != nil {
			return err
		}
	}
	select {
	case <-all:
		return sub.Unsubscribe()
	case <-ctx.Done():
		return errors.Join(errors.New("some requests have no reply"), ctx.Err(), sub.Unsubscribe())
	}
}

func (b *bare) messageID(i int) string {
	return strconv.FormatInt(time.Now().UnixNano(), 36) + "/" + strconv.Itoa(i)
}

// pullAll pulls and acknowledges n messages. It never requests more messages than exist:
// an open request would receive messages of the next round without acknowledging them.
func (b *bare) pullAll(ctx context.Context, n int) error {
	for got := 0; got < n; {
		batch, err := b.consumer.Fetch(min(bareBatch, n-got), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			if err := msg.Ack(); err != nil {
				return err
			}
			got++
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return b.conn.FlushTimeout(patience)
}

// dedup records new results and counts them.
//
// KEYS[1] results of the task
// ARGV    item, result, item, result, …
// Returns the number of new results.
const dedup = `
local new = 0
for i = 1, #ARGV, 2 do new = new + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'done', new)
return new`

func (b *bare) script(ctx context.Context) error {
	key := "pf-bench:" + strconv.Itoa(b.round)
	script := redis.NewScript(dedup)
	result := strings.Repeat("r", payload)
	for first := 0; first < b.hosts; first += bareBatch {
		var argv []any
		for i := first; i < min(first+bareBatch, b.hosts); i++ {
			argv = append(argv, i, result)
		}
		if err := script.Run(ctx, b.redis, []string{key}, argv...).Err(); err != nil {
			return err
		}
	}
	return b.redis.Unlink(ctx, key).Err()
}
