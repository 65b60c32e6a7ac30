package deliver

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
)

// TestTheParkedLimitIsSharedByAreas admits, parks and ends chunks of a few areas in
// any order.
func TestTheParkedLimitIsSharedByAreas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 400).Draw(t, "limit")
		limiter := newParkedLimiter(limit, &atomic.Int64{})
		lane := newInFlightLimit(100, 100, 1000, limiter)
		var held []*slot
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "ends") {
				n := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				held[n].release()
				held = append(held[:n], held[n+1:]...)
			} else {
				p := lane.tryAcquire()
				if p.admit(procfleet.CloudArea(rapid.IntRange(0, 2).Draw(t, "area"))) {
					p.items = rapid.IntRange(1, 10).Draw(t, "items")
					if !lane.items.TryAcquire(int64(p.items)) {
						t.Fatal("the lane has slots for all items of this test")
					}
					held = append(held, p)
					if rapid.Bool().Draw(t, "waits") {
						p.park()
					}
				} else {
					p.release()
				}
			}
			checkLimiter(t, limiter, held)
		}
		for _, p := range held {
			p.release()
		}
		if limiter.used != 0 || len(limiter.areas) != 0 || limiter.count.Load() != 0 {
			t.Fatalf("what is left over: %d of %d, %d chunks, areas %v", limiter.used, limit, limiter.count.Load(), limiter.areas)
		}
		if !lane.chunks.TryAcquire(100) || !lane.items.TryAcquire(1000) {
			t.Fatal("the lane lost slots")
		}
	})
}

func checkLimiter(t *rapid.T, limiter *parkedLimiter, held []*slot) {
	parked, of, probing, all := 0, map[procfleet.CloudArea]int{}, map[procfleet.CloudArea]int{}, 0
	for _, p := range held {
		if p.parked {
			parked++
			of[p.cloud] += p.items + chunkWeight
			all += p.items + chunkWeight
		}
		if p.probe {
			probing[p.cloud]++
		}
	}
	if int(limiter.count.Load()) != parked || limiter.used != all {
		t.Fatalf("%d chunks of weight %d are parked, the limiter says %d, %d", parked, all, limiter.count.Load(), limiter.used)
	}
	if parked > 1 && all > limiter.limit {
		t.Fatalf("%d are parked, %d may be", all, limiter.limit)
	}
	for cloud, used := range of {
		if limiter.areas[cloud].used != used {
			t.Fatalf("area %d parked %d, the limiter says %d", cloud, used, limiter.areas[cloud].used)
		}
		if used > limiter.limit/4*3 && used > 10+chunkWeight {
			t.Fatalf("area %d parked %d of %d", cloud, used, limiter.limit)
		}
	}
	for cloud, n := range probing {
		if n > maxProbes {
			t.Fatalf("area %d has %d probes", cloud, n)
		}
	}
}
