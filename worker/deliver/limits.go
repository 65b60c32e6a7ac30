package deliver

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
)

// inFlightLimit bounds the chunks in flight of small or of big tasks. Waiters acquire
// slots in order of arrival, so lanes that share a limit take turns.
type inFlightLimit struct {
	chunks   *semaphore.Weighted
	busy     *semaphore.Weighted
	items    *semaphore.Weighted
	maxItems int
	parked   *parkedLimiter
}

// slot is one chunk's unit of an in-flight limit, or of the parked limiter once the
// chunk is parked. A slot is not safe for concurrent use.
type slot struct {
	limit  *inFlightLimit
	cloud  procfleet.CloudArea
	items  int
	busy   bool
	parked bool
	probe  bool // the chunk is admitted as a probe; see [parkedLimiter]
}

// newInFlightLimit returns a limit for chunks and items in flight. busy bounds the
// chunks that are processed concurrently: all tasks share the connections to broker and
// store, and without this bound small tasks would queue after bursts of big ones.
func newInFlightLimit(chunks, busy, items int, parked *parkedLimiter) *inFlightLimit {
	return &inFlightLimit{
		chunks: semaphore.NewWeighted(int64(chunks)),
		busy:   semaphore.NewWeighted(int64(busy)),
		items:  semaphore.NewWeighted(int64(items)), maxItems: items,
		parked: parked,
	}
}

func acquire(ctx context.Context, s *semaphore.Weighted, n int) error {
	if err := s.Acquire(ctx, int64(n)); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (l *inFlightLimit) acquire(ctx context.Context) (*slot, error) {
	if err := acquire(ctx, l.chunks, 1); err != nil {
		return nil, err
	}
	return &slot{limit: l}, nil
}

func (l *inFlightLimit) tryAcquire() *slot {
	if !l.chunks.TryAcquire(1) {
		return nil
	}
	return &slot{limit: l}
}

// admit sets the chunk's cloud area and reports whether to deliver it now or postpone
// it.
func (s *slot) admit(cloud procfleet.CloudArea) (ok bool) {
	s.cloud = cloud
	s.probe, ok = s.limit.parked.admit(cloud)
	return ok
}

// acquireItems waits until n more items fit into the limit of items in flight.
func (s *slot) acquireItems(ctx context.Context, n int) error {
	weight := min(n, s.limit.maxItems)
	err := acquire(ctx, s.limit.items, weight)
	if err == nil {
		s.items = weight
	}
	return err
}

func (s *slot) acquireBusy(ctx context.Context) error {
	err := acquire(ctx, s.limit.busy, 1)
	s.busy = err == nil
	return err
}

// releaseBusy lets another chunk be processed while this chunk waits for slow hosts.
func (s *slot) releaseBusy() {
	if s.busy {
		s.busy = false
		s.limit.busy.Release(1)
	}
}

// park moves the chunk from the in-flight limit to the parked limiter. It returns false
// if the parked limiter is full. The chunk must not be parked already.
func (s *slot) park() bool {
	if !s.limit.parked.park(s.cloud, s.items) {
		return false
	}
	s.releaseInFlight()
	s.parked = true
	return true
}

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

// stopping returns a channel that is closed when the worker stops and a parked chunk
// must return to the queue. It returns nil, which blocks forever, if the chunk is not
// parked: such a chunk is finished first.
func (s *slot) stopping() <-chan struct{} {
	if !s.parked {
		return nil
	}
	return s.limit.parked.stopping
}

// parkedLimiter bounds the chunks that are parked because their hosts are slow. One
// cloud area can use at most three quarters of the limit. Further chunks of an area at
// its limit are postponed, except for up to maxProbes probes: they deliver to those
// hosts of the area that reply.
type parkedLimiter struct {
	limit int           // maximum total weight of parked chunks
	count *atomic.Int64 // number of parked chunks, exported as a metric
	// stopping is closed when the worker pulls no more chunks: parked chunks then
	// return to the queue for another worker.
	stopping chan struct{}

	mu    sync.Mutex
	used  int
	areas map[procfleet.CloudArea]*parkedArea // areas with parked chunks or probes
}

// parkedArea is the weight of parked chunks and the number of probes of one cloud area.
type parkedArea struct{ used, probes int }

const (
	// chunkWeight is the weight of a parked chunk without its items; an item weighs 1.
	chunkWeight = 16
	// maxProbes bounds the concurrent probes of an area.
	maxProbes = 2
)

func newParkedLimiter(limit int, count *atomic.Int64) *parkedLimiter {
	return &parkedLimiter{limit: limit, count: count, stopping: make(chan struct{}), areas: map[procfleet.CloudArea]*parkedArea{}}
}

// fits reports whether area a may park a chunk of the given weight. An empty
// limiter accepts a chunk of any size.
func (l *parkedLimiter) fits(a *parkedArea, weight int) bool {
	return (l.used == 0 || l.used+weight <= l.limit) && (a.used == 0 || a.used+weight <= l.limit/4*3)
}

// change calls f with the state of an area, under the lock.
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

// admit reports whether a chunk of an area may be delivered, and whether it is a probe;
// the caller ends a probe with endProbe.
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

// park adds a chunk with the given number of items and returns true, or returns false
// if the limit is reached.
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
