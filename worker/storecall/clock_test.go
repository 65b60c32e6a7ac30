package storecall

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
)

func TestTheClockPrefersPreciseReadings(t *testing.T) {
	t.Parallel()
	c := Clock{}
	local := time.Now()
	good := reading{local: local, store: local.Add(time.Hour), error: time.Millisecond}
	c.update(good)
	c.update(reading{local: local.Add(time.Second), store: local, error: time.Second})
	if c.last != good {
		t.Error("a reading with a long round trip replaced a precise one")
	}
	if off := time.Until(c.Now()); off < time.Hour-time.Minute {
		t.Errorf("clock is %v ahead, the store's an hour", off)
	}
	old := reading{local: local.Add(2 * readingAge), store: local, error: time.Second}
	c.update(old)
	if c.last != old {
		t.Error("an old reading was kept for ever")
	}
}

// TestATaskEndsAfterEachStepOfTheClock: a task of 40 s is stored when the store's clock is an hour and
// a half ahead. Every step back lets it take at most 40 s more.
func TestATaskEndsAfterEachStepOfTheClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	task := &procfleet.Task{ID: "GSETASK:1:1", CreatedAt: now.Add(90 * time.Minute), Deadline: now.Add(90*time.Minute + 40*time.Second)}
	var stepped SteppedClock
	for _, c := range []struct{ step, left time.Duration }{
		{0, 40 * time.Second},
		{30 * time.Second, 10 * time.Second},
		{-17 * time.Minute, 40 * time.Second},
		{30 * time.Second, 10 * time.Second},
		{-time.Second, 11 * time.Second}, // within the time that the task has run
	} {
		now = now.Add(c.step)
		if left := stepped.Deadline(task, now).Sub(now); left != c.left {
			t.Errorf("after a step of %s the task has %s left, want %s", c.step, left, c.left)
		}
	}
	if got := stepped.Deadline(task, task.CreatedAt.Add(time.Minute)); got.After(task.Deadline) {
		t.Errorf("the clock is ahead again, and the deadline is %s", got)
	}
}
