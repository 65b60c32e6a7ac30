package bench

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// smallFloor is the floor of N one-host status tasks, whose replies contain the results.
// Its parts are measured one after another, each with the concurrency of the system.
type smallFloor struct {
	store   time.Duration // N values written to Redis; for the embedded store: N tasks and N results appended to a file, one sync per group
	queue   time.Duration // N publishes with a message id, acknowledged
	pull    time.Duration // N messages pulled in batches and acknowledged
	request time.Duration // N request/replies
	script  time.Duration // N results through N calls of a deduplicating script; 0 for the embedded store
}

func (f *smallFloor) sum() time.Duration { return f.store + f.queue + f.pull + f.request + f.script }

// small measures the floor of n tasks at the given concurrency.
func (b *bare) small(ctx context.Context, n, inFlight int) (f smallFloor, err error) {
	b.round++
	prefix := "pf-bench:" + strconv.Itoa(b.round) + ":"
	value, data := strings.Repeat("v", 4*payload), make([]byte, payload)
	script := redis.NewScript(dedup)
	each := func(do func(ctx context.Context, i int) error) func(context.Context) error {
		return each(n, inFlight, do)
	}
	parts := slices.Concat(
		[]part{{&f.store, each(func(ctx context.Context, i int) error {
			return b.redis.Set(ctx, prefix+strconv.Itoa(i), value, bareExpiry).Err()
		})}},
		b.messages(&f, n, inFlight),
		[]part{
			{&f.script, each(func(ctx context.Context, i int) error {
				return script.Run(ctx, b.redis, []string{prefix + "r" + strconv.Itoa(i)}, 0, data).Err()
			})},
		})
	if err := measureParts(ctx, parts); err != nil {
		return f, err
	}
	return f, b.forget(ctx, prefix, n)
}

// embedded measures the floor of n tasks in the embedded store.
func (b *bare) embedded(ctx context.Context, n, inFlight int) (f smallFloor, err error) {
	commits := part{&f.store, func(context.Context) error { return b.commit(2*n, inFlight) }}
	err = measureParts(ctx, append([]part{commits}, b.messages(&f, n, inFlight)...))
	return f, err
}

// messages returns the parts of f that are messages through NATS.
func (b *bare) messages(f *smallFloor, n, inFlight int) []part {
	data := make([]byte, payload)
	return []part{
		{&f.queue, each(n, inFlight, func(ctx context.Context, i int) error { return b.queue(ctx, i, data) })},
		{&f.pull, func(ctx context.Context) error { return b.pullAll(ctx, n) }},
		{&f.request, each(n, inFlight, func(ctx context.Context, i int) error {
			_, err := b.conn.RequestWithContext(ctx, bareHosts+strconv.Itoa(i%b.hosts), data)
			return err
		})},
	}
}

// each returns a function that calls do n times with the given concurrency.
func each(n, inFlight int, do func(ctx context.Context, i int) error) func(context.Context) error {
	return func(ctx context.Context) error {
		return together(ctx, n, inFlight, func(ctx context.Context, _, i int) error { return do(ctx, i) })
	}
}

// queue publishes message i with a message id and waits for the acknowledgement.
func (b *bare) queue(ctx context.Context, i int, data []byte) error {
	_, err := b.js.Publish(ctx, bareSubject, data, jetstream.WithMsgID(b.messageID(i)))
	return err
}

// commit appends n values to a file and syncs the file after each group of values.
func (b *bare) commit(n, group int) (err error) {
	file, err := os.CreateTemp(b.plant.dir, "commits-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	value := make([]byte, 4*payload)
	for i := range n {
		if _, err := file.Write(value); err != nil {
			return err
		}
		if (i+1)%group == 0 || i+1 == n {
			if err := file.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
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
