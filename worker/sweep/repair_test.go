package sweep

import (
	"testing"
	"time"
)

func TestRepairsThatAreNotOverdueLeaveHalfOfTheSlots(t *testing.T) {
	t.Parallel()
	s := newRepairSlots(4)
	for want, got := range map[bool][]bool{
		true:  {s.reserve(1, false), s.reserve(1, false)},
		false: {s.reserve(1, false)},
	} {
		for _, reserved := range got {
			if reserved != want {
				t.Errorf("reserved %v, want %v", reserved, want)
			}
		}
	}
	if !s.reserve(1000, true) { // more than there are, but some are left
		t.Error("an overdue task got no slots")
	}
	if s.reserve(1, true) {
		t.Error("slots were reserved that do not exist")
	}
	s.release(1000)
	if !s.reserve(1, true) {
		t.Error("released slots are not free")
	}
}

// After an outage of JetStream the sweep pauses its use for RevisitMin. When the store's clock then
// stepped back, it did so for the size of the step.
func TestJetStreamIsUsedSoonAfterTheStoresClockSteppedBack(t *testing.T) {
	t.Parallel()
	s := New(Config{Timing: Timing{}.WithDefaults()})
	again := time.Unix(1_000_000, 0)
	s.busAgain.Store(again.UnixNano())
	for _, c := range []struct {
		now  time.Time
		want bool
	}{
		{again.Add(-time.Second), false},
		{again, true},
		{again.Add(time.Hour), true},
		{again.Add(-time.Hour), true},
	} {
		if got := s.busAvailable(c.now); got != c.want {
			t.Errorf("%v from the end of the pause: available is %v", c.now.Sub(again), got)
		}
	}
}
