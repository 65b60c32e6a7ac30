package fanout

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

	"github.com/procfleet/procfleet/internal/natsconn"
)

const (
	bareStream  = "PROCFLEET_BENCH"
	bareSubject = "procfleet-bench.job"
	bareHosts   = "procfleet-bench.host."
	bareBatch   = 500
	bareLinks   = 8 // connections of the responders, as simulated agents have
	payload     = 128
	// patience bounds each part of the floor.
	patience = 2 * time.Minute
)

// floor is what a task on N hosts cannot do without, each by itself.
type floor struct {
	request time.Duration // N request/replies on N subjects
	publish time.Duration // N JetStream publishes with a message id
	pull    time.Duration // N messages pulled and acknowledged
	script  time.Duration // N results through a deduplicating script
}

func (f floor) sum() time.Duration { return f.request + f.publish + f.pull + f.script }

// bare measures the floor with nothing of procfleet in between.
type bare struct {
	hosts    int
	conn     *nats.Conn
	links    []*nats.Conn // the responders'
	js       jetstream.JetStream
	consumer jetstream.Consumer
	redis    redis.UniversalClient
	round    int
}

func newBare(ctx context.Context, cfg Config, hosts int) (*bare, error) {
	b := &bare{hosts: hosts}
	if err := b.open(ctx, cfg); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bare) open(ctx context.Context, cfg Config) (err error) {
	connect := func() (*nats.Conn, error) {
		return natsconn.Connect(natsconn.Config{URL: cfg.NATS, Name: "bench", Log: cfg.Log})
	}
	if b.conn, err = connect(); err != nil {
		return err
	}
	if err := b.conn.FlushTimeout(patience); err != nil {
		return fmt.Errorf("no NATS at %s: %w", cfg.NATS, err)
	}
	for range bareLinks {
		link, err := connect()
		if err != nil {
			return err
		}
		b.links = append(b.links, link)
	}
	if err := b.respond(); err != nil {
		return err
	}
	if b.js, err = natsconn.JetStream(b.conn); err != nil {
		return err
	}
	options, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return fmt.Errorf("redis URL: %w", err)
	}
	b.redis = redis.NewClient(options)
	if err := b.redis.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", options.Addr, err)
	}
	return b.makeStream(ctx)
}

func (b *bare) makeStream(ctx context.Context) error {
	stream, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: bareStream, Subjects: []string{bareSubject},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxBytes: 256 << 20,
	})
	if err != nil {
		return fmt.Errorf("make stream %s: %w", bareStream, err)
	}
	b.consumer, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1,
	})
	return err
}

// respond subscribes one responder per host.
func (b *bare) respond() error {
	answer := make([]byte, payload)
	for i := range b.hosts {
		link := b.links[i%len(b.links)]
		_, err := link.Subscribe(bareHosts+strconv.Itoa(i), func(msg *nats.Msg) {
			_ = msg.Respond(answer) // the requester notices what is missing
		})
		if err != nil {
			return err
		}
	}
	for _, link := range b.links {
		if err := link.FlushTimeout(patience); err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) close() {
	for _, link := range b.links {
		link.Close()
	}
	if b.js != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = b.js.DeleteStream(ctx, bareStream) // a leftover is made empty by the next run
	}
	if b.redis != nil {
		_ = b.redis.Close()
	}
	if b.conn != nil {
		b.conn.Close()
	}
}

func (b *bare) measure(ctx context.Context) (f floor, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.round++
	for _, part := range []struct {
		into *time.Duration
		run  func(context.Context) error
	}{{&f.request, b.request}, {&f.publish, b.publish}, {&f.pull, b.pull}, {&f.script, b.script}} {
		begun := time.Now()
		if err := part.run(ctx); err != nil {
			return f, err
		}
		*part.into = time.Since(begun)
	}
	return f, nil
}

// request sends one request per host without waiting in between.
func (b *bare) request(ctx context.Context) error {
	inbox := nats.NewInbox()
	replies := make(chan *nats.Msg, b.hosts)
	sub, err := b.conn.ChanSubscribe(inbox, replies)
	if err != nil {
		return err
	}
	data := make([]byte, payload)
	for i := range b.hosts {
		if err := b.conn.PublishRequest(bareHosts+strconv.Itoa(i), inbox, data); err != nil {
			return err
		}
	}
	for range b.hosts {
		select {
		case <-replies:
		case <-ctx.Done():
			return errors.Join(errors.New("not every request was answered"), ctx.Err(), sub.Unsubscribe())
		}
	}
	return sub.Unsubscribe()
}

func (b *bare) publish(ctx context.Context) error {
	data := make([]byte, payload)
	futures := make([]jetstream.PubAckFuture, b.hosts)
	for i := range futures {
		id := strconv.Itoa(b.round) + "/" + strconv.Itoa(i) + "/" + strconv.FormatInt(time.Now().UnixNano(), 36)
		var err error
		futures[i], err = b.js.PublishAsync(bareSubject, data, jetstream.WithMsgID(id), jetstream.WithStallWait(patience))
		if err != nil {
			return err
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (b *bare) pull(ctx context.Context) error {
	for got := 0; got < b.hosts; {
		batch, err := b.consumer.Fetch(bareBatch, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			if err := msg.Ack(); err != nil {
				return err
			}
			got++
			if got == b.hosts {
				break // the last batch is not full and would wait for more
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return b.conn.FlushTimeout(patience)
}

// dedup records results that are new and counts them.
//
// KEYS[1] results of the task
// ARGV    item, result, item, result, …
// Returns how many were new.
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
