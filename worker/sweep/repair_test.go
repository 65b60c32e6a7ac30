package sweep

import "testing"

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
