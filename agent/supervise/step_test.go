package supervise

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	first  = Identity{BootID: "boot", PID: 100, Start: 1}
	second = Identity{BootID: "boot", PID: 200, Start: 2}

	resident = Policy{
		Resident: true, Retries: 4, Interval: 10 * time.Second, MaxDelay: 5 * time.Minute,
		StableAfter: 10 * time.Minute, LongRun: 100 * time.Second, RecoverDelay: 2 * time.Second,
	}
	once = Policy{MaxDelay: 5 * time.Minute}
)

// story is a state and the effects of the latest event.
type story struct {
	t       *testing.T
	s       State
	effects []Effect
	fence   int64
	now     Moment
}

func tell(t *testing.T) *story {
	t.Helper()
	return &story{t: t, s: State{Saved: Saved{Phase: Unknown}}}
}

func (st *story) on(e Event) *story {
	st.s, st.effects = Step(st.s, st.now, e)
	return st
}

// after advances the time before the next event.
func (st *story) after(d time.Duration) *story {
	st.now += Moment(d)
	return st
}

func (st *story) submit(a Action, p Policy) *story {
	st.fence++
	return st.on(Submitted{Op{ID: fmt.Sprint(st.fence), Action: a, Fence: st.fence, Policy: p}})
}

func (st *story) finish(c Class, sight Observation, main Identity) *story {
	return st.on(Finished{ID: st.s.Op.ID, Outcome: Outcome{Class: c, Observation: sight, Main: main}})
}

func (st *story) running() *story {
	return st.submit(Start, resident).finish(Done, Alive, first)
}

func (st *story) dies() *story {
	return st.on(Died{st.s.Main}).on(Observed{Gen: st.s.Gen, Observation: Gone})
}

func (st *story) retry() *story { return st.on(Fired{RetryTimer, st.s.Gen}) }

// back reports a successful automatic start, failed a failed one.
func (st *story) back(main Identity) *story {
	return st.on(AutoStarted{Ran: true, Outcome: Outcome{Class: Done, Observation: Alive, Main: main}})
}

func (st *story) failed(fault Fault) *story {
	return st.on(AutoStarted{Ran: fault == NoFault, Outcome: Outcome{Class: Failed, Fault: fault, Observation: Gone}})
}

func (st *story) is(d Desired, p Phase, failures int) *story {
	st.t.Helper()
	if st.s.Desired != d || st.s.Phase != p || st.s.Failures != failures {
		st.t.Fatalf("state is %s %s with %d failures, want %s %s with %d",
			st.s.Desired, st.s.Phase, st.s.Failures, d, p, failures)
	}
	return st
}

func (st *story) emits(want Effect) *story {
	st.t.Helper()
	if !slices.Contains(st.effects, want) {
		st.t.Fatalf("effects are %#v, want among them %#v", st.effects, want)
	}
	return st
}

func (st *story) emitsNo(unwanted Effect) *story {
	st.t.Helper()
	if slices.Contains(st.effects, unwanted) {
		st.t.Fatalf("effects are %#v, which must not contain %#v", st.effects, unwanted)
	}
	return st
}

func (st *story) armed() Arm {
	st.t.Helper()
	for _, e := range st.effects {
		if arm, ok := e.(Arm); ok {
			return arm
		}
	}
	st.t.Fatalf("effects are %#v, want a timer", st.effects)
	return Arm{}
}

func TestStartSupervisesResidentProcessesOnly(t *testing.T) {
	t.Parallel()
	tell(t).running().is(Up, Running, 0).emits(Watch{first}).emits(StoreSpec{"1"}).emits(Save{}).emits(End{"1"})
	tell(t).submit(Start, once).finish(Done, Alive, first).is(None, Running, 0).emits(StoreSpec{"1"}).emits(Watch{})
	tell(t).submit(Start, once).finish(Done, Gone, Identity{}).is(None, Stopped, 0)
	tell(t).submit(Start, resident).finish(Already, Alive, first).is(Up, Running, 0).emits(StoreSpec{"1"})
	tell(t).submit(Start, resident).finish(Failed, Gone, Identity{}).is("", Stopped, 0).emitsNo(StoreSpec{"1"})
}

func TestStartThatFindsItRunningLeavesTheKeptSpec(t *testing.T) {
	t.Parallel()
	tell(t).running().submit(Start, resident).finish(Already, Alive, first).
		is(Up, Running, 0).emitsNo(StoreSpec{"2"})
}

func TestBackoffDoublesAndGivesUp(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies().is(Up, Backoff, 1)
	for n, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second} {
		if got := st.armed(); got.Delay != want || got.Timer != RetryTimer {
			t.Fatalf("delay %d is %v, want %v", n+1, got.Delay, want)
		}
		st.retry().is(Up, Starting, n+1).emits(AutoStart{})
		st.failed(NoFault)
	}
	st.is(Up, Fatal, 5)
	st.retry().is(Up, Fatal, 5).emitsNo(AutoStart{})
	st.on(Swept{}).emits(Search{st.s.Gen}).on(Observed{Gen: st.s.Gen, Observation: Alive, Main: second}).
		is(Up, Running, 5).emits(Watch{second})
	st.on(Fired{StableTimer, st.s.Gen}).is(Up, Running, 0)
}

func TestCrashLoopAfterPassedWindowsGivesUp(t *testing.T) {
	t.Parallel()
	st := tell(t).running()
	for range 4 {
		st.dies().retry().back(first)
	}
	st.dies().is(Up, Fatal, 5)
}

func TestDeathAfterLongRunIsRetriedAtOnce(t *testing.T) {
	t.Parallel()
	st := tell(t).running()
	st.on(Fired{StableTimer, st.s.Gen}).dies().is(Up, Backoff, 1)
	if got := st.armed().Delay; got != 0 {
		t.Fatalf("delay is %v, want none", got)
	}
}

func TestFirstDeathOfARowAfterALongRunIsRetriedAtOnce(t *testing.T) {
	t.Parallel()
	st := tell(t).running().after(resident.LongRun).dies().is(Up, Backoff, 1)
	if got := st.armed().Delay; got != 0 {
		t.Fatalf("delay is %v, want none", got)
	}
	st.retry().back(second).after(resident.LongRun).dies().is(Up, Backoff, 2)
	if got := st.armed().Delay; got != 2*resident.Interval {
		t.Fatalf("delay of the second death of a row is %v, want %v", got, 2*resident.Interval)
	}
	st = tell(t).running().after(resident.LongRun - 1).dies()
	if got := st.armed().Delay; got != resident.Interval {
		t.Fatalf("delay after a short run is %v, want %v", got, resident.Interval)
	}
}

func TestTerminationAfterALongRunIsNotFollowedByAStartAtOnce(t *testing.T) {
	t.Parallel()
	st := tell(t).running().after(resident.LongRun)
	st.on(TerminateRequested{Main: first, Why: OverLimit}).on(Terminated{Outcome: Outcome{Class: Done, Observation: Gone}})
	if got := st.is(Up, Backoff, 1).armed().Delay; got != resident.Interval {
		t.Fatalf("delay is %v, want %v", got, resident.Interval)
	}
}

func TestProofOutlastsOperationsAndNotTheProcess(t *testing.T) {
	t.Parallel()
	st := tell(t).running()
	st.on(Fired{StableTimer, st.s.Gen}).submit(Reload, resident).finish(Done, Alive, first).dies()
	if got := st.armed().Delay; got != 0 {
		t.Fatalf("delay is %v, want none: the process had proven itself", got)
	}
	st = tell(t).running()
	st.on(Fired{StableTimer, st.s.Gen}).submit(Restart, resident).finish(Done, Alive, second).dies()
	if got := st.armed().Delay; got != resident.Interval {
		t.Fatalf("delay is %v, want %v: the new process had proven nothing", got, resident.Interval)
	}
}

func TestWhatOneSpecShowsSaysNothingAboutAnother(t *testing.T) {
	t.Parallel()
	st := tell(t).running().submit(Start, resident)
	st.on(Finished{ID: "2", Outcome: Outcome{Class: Failed, Observation: Gone, Other: true}}).
		is(Up, Running, 0).emits(Search{st.s.Gen})
	st.submit(Start, resident).on(Finished{ID: "3", Outcome: Outcome{Class: Done, Observation: Alive, Main: second, Other: true}}).
		is(Up, Running, 0).emits(StoreSpec{"3"}).emits(Watch{second})
}

func TestSuccessorIsAdoptedWithoutFailure(t *testing.T) {
	t.Parallel()
	st := tell(t).running().on(Died{first}).is(Up, Exited, 0)
	st.on(Observed{Gen: st.s.Gen, Observation: Alive, Main: second}).is(Up, Running, 0).emits(Watch{second})
}

func TestProcessStartedByHandIsAdopted(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies()
	gen := st.s.Gen
	st.on(Swept{}).on(Observed{Gen: gen, Observation: Alive, Main: second}).is(Up, Running, 1)
	st.on(Fired{RetryTimer, gen}).is(Up, Running, 1).emitsNo(AutoStart{})
}

func TestStopDropsSupervisionEvenWhenNothingRuns(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies()
	gen := st.s.Gen
	st.submit(Stop, resident).finish(Already, Gone, Identity{}).is(Down, Stopped, 0)
	st.on(Fired{RetryTimer, gen}).is(Down, Stopped, 0).emitsNo(AutoStart{})
}

func TestWhatIsFoundRunningIsNotWantedDownAnyMore(t *testing.T) {
	t.Parallel()
	tell(t).submit(Stop, once).finish(Already, Gone, Identity{}).is(Down, Stopped, 0).
		submit(Start, once).finish(Failed, Gone, Identity{}).is(Down, Stopped, 0).
		submit(Start, once).finish(Already, Alive, first).is(None, Running, 0)
}

func TestFailedStopRestoresSupervisionAndFailedKillDoesNot(t *testing.T) {
	t.Parallel()
	tell(t).running().submit(Stop, resident).is(Up, Stopping, 0).finish(Failed, Alive, first).
		is(Up, Running, 0).emits(Watch{first})
	tell(t).running().submit(Kill, resident).finish(Failed, Alive, first).is(Down, Running, 0)
	tell(t).running().submit(Kill, resident).finish(Refused, Alive, first).is(Up, Running, 0)
}

func TestDeathDuringAnOperationIsTheOperations(t *testing.T) {
	t.Parallel()
	st := tell(t).running().submit(Reload, resident).on(Died{first}).is(Up, Reloading, 0)
	st.finish(Failed, Gone, Identity{}).is(Up, Backoff, 1)
}

func TestOperationCancelsThePendingRetry(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies()
	gen := st.s.Gen
	st.submit(Start, resident).is(Up, Starting, 1).on(Fired{RetryTimer, gen}).emitsNo(AutoStart{})
	st.finish(Done, Alive, second).is(Up, Running, 0)
}

func TestAutomaticStartGivesWay(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies().retry()
	st.submit(Stop, resident).emits(Yield{}).is(Up, Starting, 1)
	st.on(AutoStarted{Outcome: Outcome{Class: Interrupted, Observation: Gone}}).is(Up, Stopping, 1)
	st.finish(Already, Gone, Identity{}).is(Down, Stopped, 0)
}

func TestFailedStartOfSupervisedProcessBacksOffAnew(t *testing.T) {
	t.Parallel()
	tell(t).running().dies().retry().failed(NoFault).is(Up, Backoff, 2).
		submit(Start, resident).finish(Failed, Gone, Identity{}).is(Up, Backoff, 1)
	tell(t).running().dies().submit(Start, resident).finish(Refused, Gone, Identity{}).is(Up, Backoff, 1)
}

func TestSupervisedButNotRunningStartsAfterOneInterval(t *testing.T) {
	t.Parallel()
	st := tell(t).running()
	st.on(Fired{StableTimer, st.s.Gen}).submit(Supervise, resident).finish(Done, Gone, Identity{}).is(Up, Backoff, 0)
	if got := st.armed().Delay; got != resident.Interval {
		t.Fatalf("delay is %v, want %v", got, resident.Interval)
	}
	st = tell(t).submit(Supervise, resident).finish(Done, Gone, Identity{}).is(Up, Backoff, 0)
	if got := st.armed().Delay; got != resident.Interval {
		t.Fatalf("delay is %v, want %v", got, resident.Interval)
	}
}

func TestReleaseLeavesTheProcessAlone(t *testing.T) {
	t.Parallel()
	tell(t).running().submit(Release, resident).finish(Done, Alive, first).is(None, Running, 0).emits(Watch{})
	tell(t).submit(Release, resident).finish(Done, Gone, Identity{}).is(None, Stopped, 0)
}

func TestOperationThatNeverLookedChangesNothing(t *testing.T) {
	t.Parallel()
	st := tell(t).running().dies().submit(Stop, resident).finish(Failed, Unseen, Identity{})
	st.is(Up, Backoff, 1).armed()
}

func TestQueueIsInFenceOrderAndBounded(t *testing.T) {
	t.Parallel()
	st := tell(t).on(Submitted{Op{ID: "a", Action: Start, Fence: 5}})
	st.on(Submitted{Op{ID: "c", Action: Stop, Fence: 9}}).on(Submitted{Op{ID: "b", Action: Reload, Fence: 7}})
	st.on(Submitted{Op{ID: "late", Action: Stop, Fence: 4}}).emits(Refuse{ID: "late", Why: Superseded})
	st.finish(Done, Alive, first).emits(Perform{ID: "b"})
	for i := range MaxQueue - 1 {
		st.on(Submitted{Op{ID: "x", Action: Stop, Fence: 10, Item: i}}).emitsNo(Refuse{ID: "x"})
	}
	st.on(Submitted{Op{ID: "z", Action: Stop, Fence: 11}}).emits(Refuse{ID: "z", Why: QueueFull})
}

func TestAKillRefusesTheOperationsThatWaitBeforeIt(t *testing.T) {
	t.Parallel()
	st := tell(t).on(Submitted{Op{ID: "running", Action: Stop, Fence: 5}})
	st.on(Submitted{Op{ID: "start", Action: Start, Fence: 6}}).on(Submitted{Op{ID: "later", Action: Start, Fence: 9}})
	st.on(Submitted{Op{ID: "kill", Action: Kill, Fence: 7}}).emits(Refuse{ID: "start", Why: Superseded})
	st.emitsNo(Refuse{ID: "later", Why: Superseded})
	st.finish(Failed, Alive, first).emits(Perform{ID: "kill"})
	st.finish(Done, Gone, Identity{}).emits(Perform{ID: "later"})
}

func TestDoubtActsOnNothing(t *testing.T) {
	t.Parallel()
	st := tell(t).running()
	for range maxIndeterminate {
		st.is(Up, Running, 0).on(Observed{Gen: st.s.Gen, Observation: Indeterminate})
	}
	st.is(Up, Uncertain, 0)
	st.on(Observed{Gen: st.s.Gen, Observation: Alive, Main: first}).is(Up, Running, 0)
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	st := tell(t).running().on(Recovered{})
	st.on(Observed{Gen: st.s.Gen, Observation: Alive, Main: first}).is(Up, Running, 0).emits(Watch{first})

	quick := resident
	quick.Interval = time.Second
	st = tell(t).submit(Start, quick).finish(Done, Alive, first).on(Recovered{})
	st.on(Observed{Gen: st.s.Gen, Observation: Gone}).is(Up, Backoff, 1).emits(Watch{})
	if got := st.armed().Delay; got != resident.RecoverDelay {
		t.Fatalf("delay after the agent's start is %v, want %v", got, resident.RecoverDelay)
	}
	st.retry().back(second)
	st.on(Fired{StableTimer, st.s.Gen}).dies()
	if got := st.armed().Delay; got != 0 {
		t.Fatalf("delay long after the agent's start is %v, want none", got)
	}

	st = tell(t).running().dies().on(Recovered{})
	if got := st.armed().Delay; got != resident.Interval {
		t.Fatalf("delay is %v, want %v", got, resident.Interval)
	}
	st.on(Observed{Gen: st.s.Gen, Observation: Gone}).is(Up, Backoff, 1)
	st.retry().emits(AutoStart{})
}

func TestDelay(t *testing.T) {
	t.Parallel()
	if got := resident.Delay(100); got != resident.MaxDelay {
		t.Errorf("delay after 100 failures is %v, want %v", got, resident.MaxDelay)
	}
	if low, high := Jitter(10*time.Second, 0), Jitter(10*time.Second, 0.999999); low != 8*time.Second || high > 12*time.Second || high < 11*time.Second {
		t.Errorf("jitter spreads 10s over %v to %v, want 8s to 12s", low, high)
	}
}
