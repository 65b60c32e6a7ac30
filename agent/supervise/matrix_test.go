package supervise

import "testing"

// TestFaultMatrix runs the rows of the fault matrix that concern only decisions. Delays use a
// clock that is never set; only the schedule of periodic processes depends on the wall clock.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F25_random_events", func(t *testing.T) {
		t.Parallel()
		t.Run("invariants", testInvariants)
	})
	t.Run("F54_wall_clock_set", func(t *testing.T) {
		t.Parallel()
		t.Run("crontab", testCrontabFollowsTheWallClock)
		t.Run("no tick twice", testNoTickIsServedTwice)
	})
	t.Run("F55_host_suspended", func(t *testing.T) {
		t.Parallel()
		t.Run("missed ticks", testMissedTicksAreServedOnceAndSoonOrNever)
	})
	t.Run("F84_periodic_processes", func(t *testing.T) {
		t.Parallel()
		t.Run("overlaps", testRunsThatOverlapAreLeftOut)
	})
}
