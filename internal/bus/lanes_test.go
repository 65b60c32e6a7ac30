package bus_test

import (
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
)

// Two dispatchers coordinate only by the queued chunks.
func TestTheQuietestLaneIsTheOneWithTheFewestChunks(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	quietest := func(turn uint64, want procfleet.Lane) {
		t.Helper()
		if got, err := env.Bus.QuietestLane(t.Context(), turn); err != nil || got != want {
			t.Errorf("in turn %d: lane %q, %v; want %s", turn, got, err, want)
		}
	}
	quietest(5, "b5") // all are empty
	quietest(procfleet.BigLanes+1, "b1")
	for n := range uint64(procfleet.BigLanes) {
		count := 6 // over several cloud areas
		if n == 3 {
			count = 2
		}
		if _, err := env.Bus.PublishChunks(t.Context(), refs(count, procfleet.BigLane(n)), string(procfleet.BigLane(n))); err != nil {
			t.Fatal(err)
		}
	}
	for turn := range uint64(procfleet.BigLanes) {
		quietest(turn, "b3")
	}
	if _, err := env.Bus.PublishChunks(t.Context(), refs(9, procfleet.LaneSmall), "small"); err != nil {
		t.Fatal(err)
	}
	quietest(0, "b3") // the lane of small tasks does not count
}
