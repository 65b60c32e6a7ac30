package supervise

import "testing"

// TestFaultMatrix runs the rows of the fault matrix that concern only decisions. Delays use a
// clock that is never set; only the schedule of periodic processes depends on the wall clock.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F25_random_events", func(t *testing.T) {
		t.Parallel()
		t.Run("invariants", TestInvariants)
	})
	t.Run("F54_wall_clock_set", func(t *testing.T) {
		t.Parallel()
		t.Run("crontab", TestCrontabFollowsTheWallClock)
		t.Run("no tick twice", TestNoTickIsServedTwice)
	})
	t.Run("F55_host_suspended", func(t *testing.T) {
		t.Parallel()
		t.Run("missed ticks", TestMissedTicksAreServedOnceAndSoonOrNever)
	})
	t.Run("F84_periodic_processes", func(t *testing.T) {
		t.Parallel()
		t.Run("overlaps", TestRunsThatOverlapAreLeftOut)
		t.Run("missed ticks", TestMissedTicksAreServedOnceAndSoonOrNever)
	})
}
