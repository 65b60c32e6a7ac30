package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// gate holds up pipelines with an echo until it is opened, and counts them.
type gate struct {
	open chan struct{}

	mu    sync.Mutex
	trips int
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Name() == "echo" }) {
			return next(ctx, commands) // the client's own
		}
		g.mu.Lock()
		g.trips++
		g.mu.Unlock()
		<-g.open
		return next(ctx, commands)
	}
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trips
}

func newConvoy(t *testing.T) (*convoy, *gate) {
	t.Helper()
	client, err := connect(Options{URL: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	single, ok := client.(*redis.Client)
	if !ok {
		t.Fatalf("client is a %T", client)
	}
	g := &gate{open: make(chan struct{})}
	single.AddHook(g)
	return &convoy{client: single, longest: time.Minute}, g
}

// waits reports how many wait for the next trip.
func (c *convoy) waits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

func TestCallersThatWaitTravelTogetherAndGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	c, g := newConvoy(t)
	const callers = 100
	failed := make(chan error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			var answer *redis.StringCmd
			text := fmt.Sprint(i)
			err := c.send(t.Context(), func(ctx context.Context, pipe redis.Pipeliner) {
				pipe.Get(ctx, "missing") // is no error
				answer = pipe.Echo(ctx, text)
				if i%2 == 1 {
					pipe.LPush(ctx, "s", "x")
					pipe.Incr(ctx, "s") // not for a list
				}
			})
			switch {
			case (err != nil) != (i%2 == 1):
				failed <- fmt.Errorf("caller %d: %w", i, err)
			case answer.Val() != text:
				failed <- fmt.Errorf("caller %d got the answer %q", i, answer.Val())
			}
		})
	}
	testenv.Eventually(t, time.Minute, func() bool { return c.waits() == callers-convoyTrips }, "all others wait")
	close(g.open)
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	if n := g.count(); n != convoyTrips+1 {
		t.Errorf("%d round trips for %d callers, want %d", n, callers, convoyTrips+1)
	}
}

func TestACallerWhoLeavesTheConvoyHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	c, g := newConvoy(t)
	echo := func(ctx context.Context, pipe redis.Pipeliner) { pipe.Echo(ctx, "x") }
	var wg sync.WaitGroup
	for range convoyTrips {
		wg.Go(func() {
			if err := c.send(t.Context(), echo); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, time.Minute, func() bool { return g.count() == convoyTrips }, "the trips are on the way")
	ctx, leave := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := c.send(ctx, func(context.Context, redis.Pipeliner) { t.Error("sent for one who left") }); !errors.Is(err, context.Canceled) {
			t.Errorf("the one who left got %v", err)
		}
	})
	wg.Go(func() {
		if err := c.send(t.Context(), echo); err != nil {
			t.Error(err)
		}
	})
	testenv.Eventually(t, time.Minute, func() bool { return c.waits() == 2 }, "two wait")
	leave()
	close(g.open)
	wg.Wait()
}

func TestNothingSentForOneWhoLeftIsNoSuccess(t *testing.T) {
	t.Parallel()
	c, _ := newConvoy(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	p := &passenger{
		ctx: ctx, done: make(chan error, 1),
		add: func(context.Context, redis.Pipeliner) { t.Error("sent for one who left") },
	}
	c.trips++
	c.travel([]*passenger{p})
	if err := <-p.done; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left is told %v", err)
	}
}
