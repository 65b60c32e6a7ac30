package sweep

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
)

func TestAHoldIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var told toldHolds
	begin := time.Unix(1, 0)
	for i, c := range []struct {
		id   procfleet.TaskID
		hold procfleet.Hold
		want bool
	}{
		{"a", procfleet.Hold{}, false},
		{"a", procfleet.Hold{Kind: procfleet.HoldBudget, Since: begin}, true},
		{"a", procfleet.Hold{Kind: procfleet.HoldBudget, Since: begin.UTC()}, false},
		{"b", procfleet.Hold{Kind: procfleet.HoldApproval, Since: begin}, true},
		{"a", procfleet.Hold{Kind: procfleet.HoldStalled, Since: begin.Add(time.Second)}, true},
		{"a", procfleet.Hold{}, false},
		{"a", procfleet.Hold{Kind: procfleet.HoldBudget, Since: begin}, true},
		{"b", procfleet.Hold{Kind: procfleet.HoldApproval, Since: begin}, false},
	} {
		if got := told.isNew(c.id, c.hold); got != c.want {
			t.Errorf("step %d: %t, want %t", i, got, c.want)
		}
	}
}
