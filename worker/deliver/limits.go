package deliver

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
)

// inFlightLimit bounds the chunks in flight of one kind of lanes. Waiters are
// served in order, so lanes that share it take turns.
type inFlightLimit struct {
	chunks   *semaphore.Weighted
	busy     *semaphore.Weighted
	items    *semaphore.Weighted
	maxItems int
	parked   *parkedLimiter
}

// slot is a chunk's unit of an in-flight limit, or of the parked limiter once the
// chunk is parked. One goroutine uses it.
type slot struct {
	limit  *inFlightLimit
	cloud  procfleet.CloudArea
	items  int
	busy   bool
	parked bool
	probe  bool // see [parkedLimiter]
}

// newInFlightLimit bounds chunks and items in flight, and how many of the chunks
// are worked on at the same time. Requests, replies and store calls of all tasks
// share connections in order of arrival: small tasks would wait at each step for
// what is done for big ones at once.
func newInFlightLimit(chunks, busy, items int, parked *parkedLimiter) *inFlightLimit {
	return &inFlightLimit{
		chunks: semaphore.NewWeighted(int64(chunks)),
		busy:   semaphore.NewWeighted(int64(busy)),
		items:  semaphore.NewWeighted(int64(items)), maxItems: items,
		parked: parked,
	}
}

// acquire waits for a slot.
func (l *inFlightLimit) acquire(ctx context.Context) (*slot, error) {
	if err := l.chunks.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return &slot{limit: l}, nil
}

// tryAcquire returns a slot if one is free at once, else nil.
func (l *inFlightLimit) tryAcquire() *slot {
	if !l.chunks.TryAcquire(1) {
		return nil
	}
	return &slot{limit: l}
}

// admit sets the chunk's cloud area and reports whether the chunk may be delivered
// now.
func (s *slot) admit(cloud procfleet.CloudArea) (ok bool) {
	s.cloud = cloud
	s.probe, ok = s.limit.parked.admit(cloud)
	return ok
}

// acquireItems waits until n more items may be in flight.
func (s *slot) acquireItems(ctx context.Context, n int) error {
	weight := min(n, s.limit.maxItems)
	if err := s.limit.items.Acquire(ctx, int64(weight)); err != nil {
		return context.Cause(ctx)
	}
	s.items = weight
	return nil
}

// acquireBusy waits until the chunk may be worked on.
func (s *slot) acquireBusy(ctx context.Context) error {
	if err := s.limit.busy.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	s.busy = true
	return nil
}

// releaseBusy lets another chunk be worked on, while this one waits for slow hosts.
func (s *slot) releaseBusy() {
	if s.busy {
		s.busy = false
		s.limit.busy.Release(1)
	}
}

// park frees the slot for the next chunk, unless the parked limiter is full: then
// it returns false. The chunk must not be parked.
func (s *slot) park() bool {
	if !s.limit.parked.park(s.cloud, s.items) {
		return false
	}
	s.releaseInFlight()
	s.parked = true
	return true
}

// release ends the use of the slot.
func (s *slot) release() {
	s.releaseBusy()
	if s.parked {
		s.limit.parked.unpark(s.cloud, s.items)
		return
	}
	s.releaseInFlight()
}

func (s *slot) releaseInFlight() {
	if s.probe {
		s.limit.parked.endProbe(s.cloud)
		s.probe = false
	}
	s.limit.items.Release(int64(s.items))
	s.limit.chunks.Release(1)
}

// stopping is closed when a parked chunk must return to the queue because the
// worker stops. It is nil, and so never ready, while the chunk is not parked: such
// a chunk finishes first.
func (s *slot) stopping() <-chan struct{} {
	if !s.parked {
		return nil
	}
	return s.limit.parked.stopping
}

// parkedLimiter bounds the chunks that are parked because their hosts are slow. No
// cloud area may use up the limit alone: further chunks of an area at its limit
// are postponed, except for a few probes, which reach those of its hosts that
// reply.
type parkedLimiter struct {
	limit int           // of the weights of parked chunks
	count *atomic.Int64 // parked chunks
	// stopping is closed when the worker pulls no more chunks: parked ones return
	// to the queue for another worker.
	stopping chan struct{}

	mu    sync.Mutex
	used  int
	areas map[procfleet.CloudArea]*parkedArea // without those that are zero
}

// parkedArea is what one cloud area uses of the limit.
type parkedArea struct{ used, probes int }

const (
	// chunkWeight is what a parked chunk costs beside its items, in items.
	chunkWeight = 16
	// maxProbes bounds the probes of an area at a time.
	maxProbes = 2
)

func newParkedLimiter(limit int, count *atomic.Int64) *parkedLimiter {
	return &parkedLimiter{limit: limit, count: count, stopping: make(chan struct{}), areas: map[procfleet.CloudArea]*parkedArea{}}
}

// fits reports whether an area may park so much more. A chunk of any size fits
// while nothing is parked.
func (l *parkedLimiter) fits(a *parkedArea, weight int) bool {
	return (l.used == 0 || l.used+weight <= l.limit) && (a.used == 0 || a.used+weight <= l.limit/4*3)
}

// change calls f with the state of an area.
func (l *parkedLimiter) change(cloud procfleet.CloudArea, f func(*parkedArea)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.areas[cloud]
	if a == nil {
		a = &parkedArea{}
		l.areas[cloud] = a
	}
	if f(a); *a == (parkedArea{}) {
		delete(l.areas, cloud)
	}
}

// admit reports whether a chunk of an area may be delivered, and whether it is a
// probe, which must end with endProbe.
func (l *parkedLimiter) admit(cloud procfleet.CloudArea) (probe, ok bool) {
	l.change(cloud, func(a *parkedArea) {
		ok = l.fits(a, chunkWeight+1)
		if !ok && a.probes < maxProbes {
			a.probes++
			probe, ok = true, true
		}
	})
	return probe, ok
}

func (l *parkedLimiter) endProbe(cloud procfleet.CloudArea) {
	l.change(cloud, func(a *parkedArea) { a.probes-- })
}

// park counts a chunk with so many items, unless the limit is reached.
func (l *parkedLimiter) park(cloud procfleet.CloudArea, items int) (ok bool) {
	l.change(cloud, func(a *parkedArea) {
		weight := items + chunkWeight
		if ok = l.fits(a, weight); ok {
			l.used += weight
			a.used += weight
			l.count.Add(1)
		}
	})
	return ok
}

func (l *parkedLimiter) unpark(cloud procfleet.CloudArea, items int) {
	l.change(cloud, func(a *parkedArea) {
		weight := items + chunkWeight
		l.used -= weight
		a.used -= weight
		l.count.Add(-1)
	})
}
