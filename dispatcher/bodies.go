package dispatcher

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// bodies is the room for bodies of requests that are worked on: what they say
// takes many times their size, for as long as the store or the queue lets it
// wait.
type bodies struct {
	big   *semaphore.Weighted // by number
	small *semaphore.Weighted // by bytes
	limit int64               // of small
}

const (
	// bigBody is from how many bytes on a body is a big one.
	bigBody = 1 << 20
	// leastBody is what a request costs at least, with or without a body.
	leastBody = 4 << 10
	// bigBodyWait and smallBodyWait are how long a caller waits for room before
	// it is told to come again.
	bigBodyWait   = 30 * time.Second
	smallBodyWait = 2 * time.Second
)

func newBodies(l *Limits) bodies {
	return bodies{big: semaphore.NewWeighted(int64(l.BigBodies)), small: semaphore.NewWeighted(l.SmallBodies), limit: l.SmallBodies}
}

// small tells by its length, negative if that is not known, whether a body is
// none of the big ones.
func small(length int64) bool { return length >= 0 && length <= bigBody }

// take waits until a body of the given length may be worked on; release gives
// the room back. A caller for whom there is none in time is told to come again.
func (b *bodies) take(ctx context.Context, length int64) (release func(), err error) {
	room, weight, wait := b.big, int64(1), bigBodyWait
	if small(length) {
		room, weight, wait = b.small, min(max(length, leastBody), b.limit), smallBodyWait
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	switch err := room.Acquire(bounded, weight); {
	case ctx.Err() != nil && err != nil:
		return func() {}, context.Cause(ctx)
	case err != nil:
		return func() {}, &dialect.Error{
			Kind: dialect.Unavailable, Problem: "too many requests are being worked on; nothing was done, try again later", RetryAfter: retryFull,
		}
	}
	return sync.OnceFunc(func() { room.Release(weight) }), nil
}
