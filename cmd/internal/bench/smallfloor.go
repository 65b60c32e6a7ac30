package bench

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// smallFloor is the floor of N one-host status tasks, whose replies contain the results.
// Its parts are measured one after another, each with the concurrency of the system.
type smallFloor struct {
	redis   time.Duration // N values written to Redis
	queue   time.Duration // N publishes with a message id, acknowledged
	pull    time.Duration // N messages pulled in batches and acknowledged
	request time.Duration // N request/replies
	script  time.Duration // N results through N calls of a deduplicating script

	// Additional floor of N results in a JetStream stream, as an earlier release sent them.
	// It allows comparison with the figures of that release.
	result     time.Duration // N acknowledged publishes
	resultPull time.Duration // N messages pulled in batches and acknowledged
}

func (f *smallFloor) sum() time.Duration { return f.redis + f.queue + f.pull + f.request + f.script }

// old returns the floor with a result stream.
func (f *smallFloor) old() time.Duration { return f.sum() + f.result + f.resultPull }

// small measures the floor of n tasks at the given concurrency.
func (b *bare) small(ctx context.Context, n, inFlight int) (f smallFloor, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.round++
	prefix := "pf-bench:" + strconv.Itoa(b.round) + ":"
	value, data := strings.Repeat("v", 4*payload), make([]byte, payload)
	script := redis.NewScript(dedup)
	each := func(do func(ctx context.Context, i int) error) func() error {
		return func() error {
			return together(ctx, n, inFlight, func(ctx context.Context, _, i int) error { return do(ctx, i) })
		}
	}
	pull := func() error { return b.pullAll(ctx, n) }
	for _, part := range []struct {
		into *time.Duration
		run  func() error
	}{
		{&f.redis, each(func(ctx context.Context, i int) error {
			return b.redis.Set(ctx, prefix+strconv.Itoa(i), value, bareExpiry).Err()
		})},
		{&f.queue, each(func(ctx context.Context, i int) error {
			return b.queue(ctx, i, data)
		})},
		{&f.pull, pull},
		{&f.request, each(func(ctx context.Context, i int) error {
			_, err := b.conn.RequestWithContext(ctx, bareHosts+strconv.Itoa(i%b.hosts), data)
			return err
		})},
		{&f.result, each(func(ctx context.Context, _ int) error {
			_, err := b.js.Publish(ctx, bareSubject, data)
			return err
		})},
		{&f.resultPull, pull},
		{&f.script, each(func(ctx context.Context, i int) error {
			return script.Run(ctx, b.redis, []string{prefix + "r" + strconv.Itoa(i)}, 0, data).Err()
		})},
	} {
		begun := time.Now()
		if err := part.run(); err != nil {
			return f, err
		}
		*part.into = time.Since(begun)
	}
	return f, b.forget(ctx, prefix, n)
}

// queue publishes message i with a message id and waits for the acknowledgement.
func (b *bare) queue(ctx context.Context, i int, data []byte) error {
	_, err := b.js.Publish(ctx, bareSubject, data, jetstream.WithMsgID(b.messageID(i)))
	return err
}

// bareExpiry is the expiry of keys in Redis that an aborted run does not remove.
const bareExpiry = 10 * time.Minute

func (b *bare) forget(ctx context.Context, prefix string, n int) error {
	pipe := b.redis.Pipeline()
	for i := range n {
		pipe.Unlink(ctx, prefix+strconv.Itoa(i), prefix+"r"+strconv.Itoa(i))
	}
	_, err := pipe.Exec(ctx)
	return err
}
