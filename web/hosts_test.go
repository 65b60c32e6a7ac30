package web

import (
	"testing"

	"github.com/procfleet/procfleet/client"
)

func TestATableOfProcessesSaysHowManyItDoesNotShow(t *testing.T) {
	for n, hidden := range map[int]int{0: 0, 200: 0, 250: 50} {
		if rows := newProcessRows(make([]client.FleetProcess, n)); len(rows.Shown) != n-hidden || rows.Hidden != hidden {
			t.Errorf("of %d processes %d are shown and %d hidden", n, len(rows.Shown), rows.Hidden)
		}
	}
}
