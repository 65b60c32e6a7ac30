package worker

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
)

// share bounds what is in flight of one kind of lanes. Waiters are served in
// order, so lanes that share it take turns.
type share struct {
	chunks *semaphore.Weighted
	items  *semaphore.Weighted
	limit  int // of items
	busy   *semaphore.Weighted
	room   *parkingRoom
}

// place is a chunk's place in a share, or in the parking room once it stepped
// aside. One goroutine uses it.
type place struct {
	share  *share
	cloud  procfleet.CloudArea
	items  int
	busy   bool
	parked bool
	scout  bool // see [parkingRoom]
}

// newShare bounds chunks and items in flight, and how many of the chunks are
// worked on at the same time. Requests, answers and calls of the store go the
// same ways for all tasks, first come, first served: small tasks wait at each
// step for what is done for big ones at once.
func newShare(chunks, busy, items int, room *parkingRoom) *share {
	return &share{
		chunks: semaphore.NewWeighted(int64(chunks)),
		busy:   semaphore.NewWeighted(int64(busy)),
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

// admit tells which area the chunk is of, and reports whether it may be
// delivered now.
func (p *place) admit(cloud procfleet.CloudArea) (ok bool) {
	p.cloud = cloud
	p.scout, ok = p.share.room.admit(cloud)
	return ok
}

// carry waits until n more items may be in flight.
func (p *place) carry(ctx context.Context, n int) error {
	weight := min(n, p.share.limit)
	if err := p.share.items.Acquire(ctx, int64(weight)); err != nil {
		return context.Cause(ctx)
	}
	p.items = weight
	return nil
}

// getBusy waits until the chunk may be worked on.
func (p *place) getBusy(ctx context.Context) error {
	if err := p.share.busy.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	p.busy = true
	return nil
}

// rest lets another chunk be worked on, while this one waits for slow hosts.
func (p *place) rest() {
	if p.busy {
		p.busy = false
		p.share.busy.Release(1)
	}
}

// stepAside moves a chunk that is not there yet to the parking room and makes
// way for the next. It reports false if there is no room.
func (p *place) stepAside() bool {
	if !p.share.room.park(p.cloud, p.items) {
		return false
	}
	p.vacate()
	p.parked = true
	return true
}

// leave gives the place back.
func (p *place) leave() {
	p.rest()
	if p.parked {
		p.share.room.unpark(p.cloud, p.items)
		return
	}
	p.vacate()
}

func (p *place) vacate() {
	if p.scout {
		p.share.room.dismiss(p.cloud)
		p.scout = false
	}
	p.share.items.Release(int64(p.items))
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
