package worker

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// share bounds what is in flight of one kind of lanes. Waiters are served in
// order, so lanes that share it take turns.
type share struct {
	chunks *semaphore.Weighted
	items  *semaphore.Weighted
	limit  int // of items
	room   *parkingRoom
}

// parkingRoom is for chunks that stepped aside.
type parkingRoom struct {
	free *semaphore.Weighted
	used atomic.Int64
	// leave is closed when the worker pulls no more chunks: what is parked
	// goes back to the queue for another worker.
	leave chan struct{}
}

// place is a chunk's place in a share, or in the parking room once it stepped
// aside. One goroutine uses it.
type place struct {
	share  *share
	items  int64
	parked bool
}

func newShare(chunks, items int, room *parkingRoom) *share {
	return &share{
		chunks: semaphore.NewWeighted(int64(chunks)),
		items:  semaphore.NewWeighted(int64(items)), limit: items,
		room: room,
	}
}

// enter waits for a place.
func (s *share) enter(ctx context.Context) (*place, error) {
	if err := s.chunks.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return &place{share: s}, nil
}

// tryEnter takes a place if one is free at once; else it returns nil.
func (s *share) tryEnter() *place {
	if !s.chunks.TryAcquire(1) {
		return nil
	}
	return &place{share: s}
}

// carry waits until n more items may be in flight.
func (p *place) carry(ctx context.Context, n int) error {
	weight := int64(min(n, p.share.limit))
	if err := p.share.items.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	p.items = weight
	return nil
}

// stepAside moves a chunk that is not there yet to the parking room and makes
// way for the next. It reports false if there is no room.
func (p *place) stepAside() bool {
	if !p.share.room.free.TryAcquire(1) {
		return false
	}
	p.vacate()
	p.parked = true
	p.share.room.used.Add(1)
	return true
}

// leave gives the place back.
func (p *place) leave() {
	if !p.parked {
		p.vacate()
		return
	}
	p.share.room.used.Add(-1)
	p.share.room.free.Release(1)
}

func (p *place) vacate() {
	p.share.items.Release(p.items)
	p.share.chunks.Release(1)
}

// parkedStop ends the wait of a parked chunk when the worker stops. A chunk
// that is not parked finishes first: nil, which is never ready.
func (p *place) parkedStop() <-chan struct{} {
	if !p.parked {
		return nil
	}
	return p.share.room.leave
}
