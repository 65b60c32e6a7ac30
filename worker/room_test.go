package worker

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
)

// TestTheParkingRoomIsSharedByAreas lets chunks of a few areas come, step
// aside and end in any order.
func TestTheParkingRoomIsSharedByAreas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 400).Draw(t, "limit")
		room := newParkingRoom(limit)
		lane := newShare(100, 100, 1000, room)
		var held []*place
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "ends") {
				n := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				held[n].leave()
				held = append(held[:n], held[n+1:]...)
			} else {
				p := lane.tryEnter()
				if p.admit(procfleet.CloudArea(rapid.IntRange(0, 2).Draw(t, "area"))) {
					p.items = rapid.IntRange(1, 10).Draw(t, "items")
					if !lane.items.TryAcquire(int64(p.items)) {
						t.Fatal("the lane has room for all items of this test")
					}
					held = append(held, p)
					if rapid.Bool().Draw(t, "waits") {
						p.stepAside()
					}
				} else {
					p.leave()
				}
			}
			checkRoom(t, room, held)
		}
		for _, p := range held {
			p.leave()
		}
		if room.used != 0 || len(room.areas) != 0 || room.parked.Load() != 0 {
			t.Fatalf("what is left over: %d of %d, %d chunks, areas %v", room.used, limit, room.parked.Load(), room.areas)
		}
		if !lane.chunks.TryAcquire(100) || !lane.items.TryAcquire(1000) {
			t.Fatal("the lane lost places")
		}
	})
}

func checkRoom(t *rapid.T, room *parkingRoom, held []*place) {
	parked, of, scouting, all := 0, map[procfleet.CloudArea]int{}, map[procfleet.CloudArea]int{}, 0
	for _, p := range held {
		if p.parked {
			parked++
			of[p.cloud] += p.items + chunkWeight
			all += p.items + chunkWeight
		}
		if p.scout {
			scouting[p.cloud]++
		}
	}
	if int(room.parked.Load()) != parked || room.used != all {
		t.Fatalf("%d chunks of weight %d are parked, the room says %d, %d", parked, all, room.parked.Load(), room.used)
	}
	if parked > 1 && all > room.limit {
		t.Fatalf("%d are parked, %d may be", all, room.limit)
	}
	for cloud, used := range of {
		if room.areas[cloud].used != used {
			t.Fatalf("area %d parked %d, the room says %d", cloud, used, room.areas[cloud].used)
		}
		if used > room.limit/4*3 && used > 10+chunkWeight {
			t.Fatalf("area %d parked %d of %d", cloud, used, room.limit)
		}
	}
	for cloud, n := range scouting {
		if n > scouts {
			t.Fatalf("area %d has %d scouts", cloud, n)
		}
	}
}
