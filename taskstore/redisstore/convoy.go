package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// convoy sends what many goroutines ask of one server in common round trips.
// Who comes while nobody is on the way goes at once and alone; who comes
// meanwhile waits for the next trip, together with all others who do. So a
// lone caller loses nothing, and many share the cost of writing, reading and
// waking up that a small call spends almost all its time on.
type convoy struct {
	client  *redis.Client
	longest time.Duration // bounds a common trip

	mu      sync.Mutex
	trips   int // on the way
	waiting []*passenger
}

const (
	// convoyTrips is how many round trips are on the way at a time: one is
	// worked on by Redis while the answers of the other are read.
	convoyTrips = 2
	// convoySize bounds what goes in one trip.
	convoySize = 256
)

// addFunc adds commands to a pipeline.
type addFunc func(ctx context.Context, pipe redis.Pipeliner)

// passenger is commands of one caller on their way.
type passenger struct {
	ctx      context.Context //nolint:containedctx // the caller's, for as long as it waits in send
	add      addFunc
	left     error // why it did not go on the trip
	commands []redis.Cmder
	done     chan error // takes one error without waiting
}

// send sends what add adds and returns the first error among the answers. It
// returns when ctx ends; then nothing may be read from the commands.
func (c *convoy) send(ctx context.Context, add addFunc) error {
	if p := c.board(ctx, add); p != nil {
		select {
		case err := <-p.done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		if next := c.arrived(); next != nil {
			go c.travel(next)
		}
	}()
	return send(ctx, c.client, add)
}

// board queues what is to wait for the next trip; nil means to go at once.
func (c *convoy) board(ctx context.Context, add addFunc) *passenger {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trips < convoyTrips {
		c.trips++
		return nil
	}
	p := &passenger{ctx: ctx, add: add, done: make(chan error, 1)}
	c.waiting = append(c.waiting, p)
	return p
}

// arrived ends a trip and returns those who wait, for the next one.
func (c *convoy) arrived() []*passenger {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.trips--
		return nil
	}
	n := min(len(c.waiting), convoySize)
	next := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	return next
}

// travel makes one trip after the other for as long as anyone waits.
func (c *convoy) travel(together []*passenger) {
	for together != nil {
		c.trip(together)
		together = c.arrived()
	}
}

func (c *convoy) trip(together []*passenger) {
	ctx, cancel := context.WithTimeout(context.Background(), c.longest)
	defer cancel()
	pipe := c.client.Pipeline()
	for _, p := range together {
		if p.left = p.ctx.Err(); p.left != nil {
			continue // it expects nothing to be done
		}
		from := pipe.Len()
		p.add(ctx, pipe)
		p.commands = pipe.Cmds()[from:]
	}
	exec(ctx, pipe)
	for _, p := range together {
		p.done <- cmp.Or(p.left, firstError(p.commands))
	}
}

// send sends what add adds in a round trip of its own.
func send(ctx context.Context, client redis.UniversalClient, add addFunc) error {
	pipe := client.Pipeline()
	add(ctx, pipe)
	return flush(ctx, pipe)
}

// flush sends what a pipeline holds and returns the first error that is one.
func flush(ctx context.Context, pipe redis.Pipeliner) error {
	return firstError(exec(ctx, pipe))
}

// exec sends what a pipeline holds. Then every command has its own error. The
// driver leaves all of them without one when a server turns a new connection
// away, and a command that was never sent would look like a missing key.
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
