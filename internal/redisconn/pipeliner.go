package redisconn

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeliner batches the calls of many goroutines to one server. While fewer than
// maxBatches batches are in flight, it sends a call immediately in its own batch; other
// calls wait for the next batch. A single caller therefore never waits, and many
// callers share the cost of writing, reading and waking up, which dominates a small
// call.
type pipeliner struct {
	client  *redis.Client
	timeout time.Duration // timeout of a batch

	mu       sync.Mutex
	inFlight int // number of batches in flight
	waiting  []*pendingCall
}

const (
	// maxBatches is the maximum number of batches in flight. With two, Redis processes
	// one batch while the pipeliner reads the replies of the other.
	maxBatches = 2
	// maxBatchCalls is the maximum number of calls in a batch.
	maxBatchCalls = 256
)

// AddFunc adds commands to a pipeline.
type AddFunc func(ctx context.Context, pipe redis.Pipeliner)

// pendingCall holds the commands of one caller until their replies are read.
type pendingCall struct {
	ctx      context.Context //nolint:containedctx // the caller's context; used only while the caller waits in send
	add      AddFunc
	canceled error // the reason why the commands were not sent
	commands []redis.Cmder
	done     chan error // buffered, so that sending one error never blocks
}

// send sends the commands of add and returns the first error among their replies. It
// returns when ctx ends; the caller must not read the commands then.
func (p *pipeliner) send(ctx context.Context, add AddFunc) error {
	if c := p.enqueue(ctx, add); c != nil {
		select {
		case err := <-c.done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		if next := p.nextBatch(); next != nil {
			go p.sendBatches(next)
		}
	}()
	return send(ctx, p.client, add)
}

// enqueue adds a call to the next batch. It returns nil if the caller must send the
// call itself.
func (p *pipeliner) enqueue(ctx context.Context, add AddFunc) *pendingCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight < maxBatches {
		p.inFlight++
		return nil
	}
	c := &pendingCall{ctx: ctx, add: add, done: make(chan error, 1)}
	p.waiting = append(p.waiting, c)
	return c
}

// nextBatch ends a batch and returns the waiting calls as the next batch; nil if no
// call waits.
func (p *pipeliner) nextBatch() []*pendingCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.inFlight--
		return nil
	}
	n := min(len(p.waiting), maxBatchCalls)
	next := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	return next
}

// sendBatches sends batches until no call waits.
func (p *pipeliner) sendBatches(batch []*pendingCall) {
	for batch != nil {
		p.sendBatch(batch)
		batch = p.nextBatch()
	}
}

func (p *pipeliner) sendBatch(batch []*pendingCall) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	pipe := p.client.Pipeline()
	for _, c := range batch {
		if c.canceled = c.ctx.Err(); c.canceled != nil {
			continue // the caller has returned
		}
		from := pipe.Len()
		c.add(ctx, pipe)
		c.commands = pipe.Cmds()[from:]
	}
	exec(ctx, pipe)
	for _, c := range batch {
		c.done <- cmp.Or(c.canceled, firstError(c.commands))
	}
}

// send sends the commands of add in their own round trip.
func send(ctx context.Context, client redis.UniversalClient, add AddFunc) error {
	pipe := client.Pipeline()
	add(ctx, pipe)
	return flush(ctx, pipe)
}

// flush sends the commands of a pipeline and returns the first error. A missing key is
// not an error.
func flush(ctx context.Context, pipe redis.Pipeliner) error {
	return firstError(exec(ctx, pipe))
}

// exec sends the commands of a pipeline and sets the error of each command. If a server
// rejects a new connection, go-redis sets no error, and a command that was never sent
// would look like a missing key.
func exec(ctx context.Context, pipe redis.Pipeliner) []redis.Cmder {
	commands, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Err() != nil }) {
		for _, c := range commands {
			c.SetErr(err)
		}
	}
	return commands
}

func firstError(commands []redis.Cmder) error {
	for _, c := range commands {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}
