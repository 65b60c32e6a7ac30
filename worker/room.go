package worker

import (
	"sync"
	"sync/atomic"

	"github.com/procfleet/procfleet"
)

// parkingRoom is for chunks that stepped aside since their hosts let them
// wait. No cloud area may fill it alone: chunks of an area that has no room
// left are put off instead, but for a few that go on trying its hosts.
type parkingRoom struct {
	limit  int          // of the weights of what is parked
	parked atomic.Int64 // chunks
	// leave is closed when the worker pulls no more chunks: what is parked
	// goes back to the queue for another worker.
	leave chan struct{}

	mu    sync.Mutex
	used  int
	areas map[procfleet.CloudArea]*areaRoom // those with anything in it
}

// areaRoom is what one cloud area takes of the room.
type areaRoom struct{ used, scouts int }

const (
	// chunkWeight is what a parked chunk costs beside its items, in items.
	chunkWeight = 16
	// scouts is how many chunks of an area without room may be delivered at a
	// time, to reach those of its hosts that do answer.
	scouts = 2
)

func newParkingRoom(limit int) *parkingRoom {
	return &parkingRoom{limit: limit, leave: make(chan struct{}), areas: map[procfleet.CloudArea]*areaRoom{}}
}

// fits reports whether an area may park so much more. A chunk of any size has
// room where nothing is parked.
func (r *parkingRoom) fits(a *areaRoom, weight int) bool {
	return (r.used == 0 || r.used+weight <= r.limit) && (a.used == 0 || a.used+weight <= r.limit/4*3)
}

func (r *parkingRoom) area(cloud procfleet.CloudArea) *areaRoom {
	a := r.areas[cloud]
	if a == nil {
		a = &areaRoom{}
		r.areas[cloud] = a
	}
	return a
}

func (r *parkingRoom) forget(cloud procfleet.CloudArea, a *areaRoom) {
	if *a == (areaRoom{}) {
		delete(r.areas, cloud)
	}
}

// admit reports whether a chunk of an area may be delivered, and whether it is
// a scout, which has to be given back with dismiss.
func (r *parkingRoom) admit(cloud procfleet.CloudArea) (scout, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.area(cloud)
	defer r.forget(cloud, a)
	switch {
	case r.fits(a, chunkWeight+1):
		return false, true
	case a.scouts < scouts:
		a.scouts++
		return true, true
	}
	return false, false
}

func (r *parkingRoom) dismiss(cloud procfleet.CloudArea) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.area(cloud)
	a.scouts--
	r.forget(cloud, a)
}

// park takes room for so many items, or reports false if there is none.
func (r *parkingRoom) park(cloud procfleet.CloudArea, items int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.area(cloud)
	defer r.forget(cloud, a)
	weight := items + chunkWeight
	if !r.fits(a, weight) {
		return false
	}
	r.used += weight
	a.used += weight
	r.parked.Add(1)
	return true
}

func (r *parkingRoom) unpark(cloud procfleet.CloudArea, items int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.area(cloud)
	weight := items + chunkWeight
	r.used -= weight
	a.used -= weight
	r.parked.Add(-1)
	r.forget(cloud, a)
}
