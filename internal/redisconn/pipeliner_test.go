package redisconn

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

// gate delays pipelines with an echo until it is opened, and counts them.
type gate struct {
	open chan struct{}

	mu        sync.Mutex
	pipelines int
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Name() == "echo" }) {
			return next(ctx, commands) // the client's own
		}
		g.mu.Lock()
		g.pipelines++
		g.mu.Unlock()
		<-g.open
		return next(ctx, commands)
	}
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pipelines
}

func newPipeliner(t *testing.T) (*pipeliner, *gate) {
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
	return &pipeliner{client: single, timeout: time.Minute}, g
}

// waits reports how many calls wait for the next batch.
func (p *pipeliner) waits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

func TestWaitingCallsShareABatchAndGetTheirOwnReplies(t *testing.T) {
	t.Parallel()
	p, g := newPipeliner(t)
	const callers = 100
	failed := make(chan error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			var answer *redis.StringCmd
			text := fmt.Sprint(i)
			err := p.send(t.Context(), func(ctx context.Context, pipe redis.Pipeliner) {
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
	testenv.Eventually(t, time.Minute, func() bool { return p.waits() == callers-maxBatches }, "all other calls wait")
	close(g.open)
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	if n := g.count(); n != maxBatches+1 {
		t.Errorf("%d round trips for %d callers, want %d", n, callers, maxBatches+1)
	}
}

func TestACanceledCallDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	p, g := newPipeliner(t)
	echo := func(ctx context.Context, pipe redis.Pipeliner) { pipe.Echo(ctx, "x") }
	var wg sync.WaitGroup
	for range maxBatches {
		wg.Go(func() {
			if err := p.send(t.Context(), echo); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, time.Minute, func() bool { return g.count() == maxBatches }, "the batches are in flight")
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := p.send(ctx, func(context.Context, redis.Pipeliner) { t.Error("sent for a canceled call") }); !errors.Is(err, context.Canceled) {
			t.Errorf("the canceled call got %v", err)
		}
	})
	wg.Go(func() {
		if err := p.send(t.Context(), echo); err != nil {
			t.Error(err)
		}
	})
	testenv.Eventually(t, time.Minute, func() bool { return p.waits() == 2 }, "two calls wait")
	cancel()
	close(g.open)
	wg.Wait()
}

func TestACanceledCallIsNoSuccess(t *testing.T) {
	t.Parallel()
	p, _ := newPipeliner(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call := &pendingCall{
		ctx: ctx, done: make(chan error, 1),
		add: func(context.Context, redis.Pipeliner) { t.Error("sent for a canceled call") },
	}
	p.inFlight++
	p.sendBatches([]*pendingCall{call})
	if err := <-call.done; !errors.Is(err, context.Canceled) {
		t.Errorf("the canceled call got %v", err)
	}
}
