package supervise

import "testing"

// TestFaultMatrix has the rows of the fault matrix that are about decisions
// alone. Delays are counted on a clock that nobody sets; what follows the wall
// clock is the schedule of periodic processes.
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
