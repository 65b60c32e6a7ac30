package redistest_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestClockMoves(t *testing.T) {
	t.Parallel()
	s := redistest.BuildClock(t).Start(t)
	c := client(t, s)
	now := func() time.Time {
		at, err := c.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := now()
	s.Advance(t, time.Hour)
	if d := now().Sub(before); d < time.Hour || d > time.Hour+time.Minute {
		t.Errorf("an hour later %v had passed", d)
	}
	s.Advance(t, -2*time.Hour)
	if d := now().Sub(before); d > -50*time.Minute {
		t.Errorf("two hours back %v had passed", d)
	}
}
