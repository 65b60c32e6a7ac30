package supervise

import (
	"testing"
	"time"
)

// guarded returns a resident policy with all limits against restart loops.
func guarded() Policy {
	p := resident
	p.FlapStarts, p.FlapWindow = 10, 30*time.Minute
	p.SetupTries = 2
	p.LimitKills, p.LimitWindow = 3, time.Hour
	p.ProbeInterval, p.ProbeTries, p.ProbeFor = 10*time.Minute, 5, 2*time.Hour
	p.ConflictWait = 5 * time.Second
	return p
}

func (st *story) guarded() *story {
	return st.submit(Start, guarded()).finish(Done, Alive, first)
}

func (st *story) armsNothing() *story {
	st.t.Helper()
	for _, e := range st.effects {
		if arm, ok := e.(Arm); ok {
			st.t.Fatalf("armed %#v, want no timer", arm)
		}
	}
	return st
}

func (st *story) givenUp(why Reason) *story {
	st.t.Helper()
	if st.s.Phase != Fatal || st.s.History.GaveUp != why {
		st.t.Fatalf("phase is %s, given up by %q, want %s by %q", st.s.Phase, st.s.History.GaveUp, Fatal, why)
	}
	return st
}

func (st *story) condemn(why Why) *story { return st.on(TerminateRequested{Main: st.s.Main, Why: why}) }

func (st *story) terminated() *story {
	return st.on(Terminated{Outcome{Class: Done, Observation: Gone}})
}

func TestFlappingIsGivenUpThoughEachStartPassed(t *testing.T) {
	t.Parallel()
	patient := guarded()
	patient.Retries = 100
	st := tell(t).submit(Start, patient).finish(Done, Alive, first)
	for range 10 {
		st.after(2 * time.Minute).dies().retry().back(first)
	}
	if st.s.Restarts != 10 {
		t.Fatalf("%d restarts, want 10", st.s.Restarts)
	}
	st.after(2 * time.Minute).dies().givenUp(Flapping).emits(Emit{Notice: GivenUp, Main: first, Reason: Flapping})
}

func TestStartsLongAgoAreNoFlapping(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded()
	for range 10 {
		st.after(20*time.Minute).on(Fired{StableTimer, st.s.Gen}).dies().is(Up, Backoff, 1).retry().back(first)
	}
}

func TestWhatNeverRanIsNoStart(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded()
	for range 20 {
		st.dies().retry().on(AutoStarted{Outcome: Outcome{Class: Done, Observation: Alive, Main: second}}).
			emits(Emit{Notice: ExternalStart, Main: second}).on(Fired{StableTimer, st.s.Gen})
	}
	if st.s.Restarts != 0 || len(st.s.History.Starts) != 0 {
		t.Fatalf("%d restarts, history %+v, want none", st.s.Restarts, st.s.History)
	}
}

func TestGivenUpIsTriedRarelyAndThenNotAtAll(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies()
	for range 4 {
		st.retry().failed(NoFault)
	}
	st.givenUp(OutOfRetries).emits(Emit{Notice: GivenUp, Reason: OutOfRetries})
	for range 5 {
		if got := st.armed(); got.Delay != 10*time.Minute {
			t.Fatalf("delay is %v, want 10m", got.Delay)
		}
		st.after(10 * time.Minute).retry().emits(AutoStart{}).failed(NoFault).
			givenUp(OutOfRetries).emitsNo(Emit{Notice: GivenUp, Reason: OutOfRetries})
	}
	st.armsNothing().retry().emitsNo(AutoStart{})
	st.on(Observed{Gen: st.s.Gen, Observation: Alive, Main: second}).is(Up, Running, 10)
}

func TestRareAttemptsEndWithTheirTime(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies()
	for range 4 {
		st.retry().failed(NoFault)
	}
	st.after(2 * time.Hour).retry().emitsNo(AutoStart{})
}

func TestProcessBackFromGivingUpHasToProveItself(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies()
	for range 4 {
		st.retry().failed(NoFault)
	}
	st.retry().back(second).is(Up, Running, 5).dies().givenUp(OutOfRetries)
	st.retry().back(second).on(Fired{StableTimer, st.s.Gen}).dies().is(Up, Backoff, 1)
}

func TestRareAttemptThatGivesWayIsNotCounted(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies()
	for range 4 {
		st.retry().failed(NoFault)
	}
	st.retry().submit(Reload, guarded()).on(AutoStarted{Outcome: Outcome{Class: Interrupted}}).is(Up, Reloading, 5)
	if st.s.History.Probes != 0 {
		t.Fatalf("%d attempts counted, want 0", st.s.History.Probes)
	}
	st.finish(Refused, Unseen, Identity{}).givenUp(OutOfRetries).armed()
}

func TestOperationForgivesEverything(t *testing.T) {
	t.Parallel()
	for _, action := range []Action{Start, Restart, Supervise} {
		st := tell(t).guarded().dies()
		for range 4 {
			st.retry().failed(NoFault)
		}
		st.givenUp(OutOfRetries).submit(action, guarded()).finish(Done, Alive, second).is(Up, Running, 0)
		if h := st.s.History; h.GaveUp != "" || len(h.Starts) != 0 {
			t.Fatalf("after %s the history is %+v, want none", action, h)
		}
	}
}

func TestHostThatIsNotSetUpIsGivenUpSoon(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies().retry().failed(BadSetup).is(Up, Backoff, 2).retry().failed(BadSetup)
	st.givenUp(Unstartable)
	tell(t).guarded().dies().retry().failed(BadSetup).retry().failed(NoFault).retry().failed(BadSetup).is(Up, Backoff, 4)
}

func TestHostWithoutRoomIsNotTheProcesssFailure(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies()
	for range 20 {
		st.retry().failed(HostExhausted).is(Up, Backoff, 1).armed()
	}
}

func TestTerminationBacksOffAndGivesUp(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded()
	for n := range 3 {
		st.after(11*time.Minute).on(Fired{StableTimer, st.s.Gen}).condemn(OverLimit).
			emits(Terminate{Main: first, Why: OverLimit}).is(Up, LimitKill, 0)
		st.on(Died{first}).is(Up, LimitKill, 0).terminated()
		if n < 2 {
			if got := st.is(Up, Backoff, 1).armed(); got.Delay != guarded().Interval {
				t.Fatalf("delay is %v, want %v", got.Delay, guarded().Interval)
			}
			st.retry().back(first)
		}
	}
	st.givenUp(LimitAgain).emits(Emit{Notice: GivenUp, Main: first, Reason: LimitAgain})
}

func TestTerminationsApartAreNoLoop(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded()
	for range 5 {
		st.after(31*time.Minute).on(Fired{StableTimer, st.s.Gen}).condemn(OverLimit).terminated().is(Up, Backoff, 1).retry().back(first)
	}
}

func TestTerminationForHealthIsNoneForALimit(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded()
	for range 2 {
		st.condemn(Unhealthy).terminated().retry().back(first)
	}
	st.condemn(Unhealthy).terminated().is(Up, Backoff, 3)
}

func TestTerminationOfAnUnsupervisedProcess(t *testing.T) {
	t.Parallel()
	tell(t).submit(Start, once).finish(Done, Alive, first).condemn(OverLimit).terminated().is(None, Stopped, 0).armsNothing()
}

func TestTerminationIsNotQueued(t *testing.T) {
	t.Parallel()
	nothing := Terminate{Main: first, Why: OverLimit}
	tell(t).guarded().on(TerminateRequested{Main: second, Why: OverLimit}).emitsNo(Terminate{Main: second, Why: OverLimit})
	tell(t).guarded().on(Pause{true}).condemn(OverLimit).emitsNo(nothing)
	tell(t).guarded().submit(Reload, guarded()).condemn(OverLimit).emitsNo(nothing)
	st := tell(t).guarded()
	for range maxIndeterminate {
		st.on(Observed{Gen: st.s.Gen, Observation: Indeterminate})
	}
	st.condemn(OverLimit).emitsNo(nothing)
}

func TestOperationWaitsForTheTermination(t *testing.T) {
	t.Parallel()
	tell(t).guarded().condemn(OverLimit).submit(Stop, guarded()).is(Up, LimitKill, 0).
		terminated().is(Up, Stopping, 1).finish(Already, Gone, Identity{}).is(Down, Stopped, 0)
}

func TestFailedTerminationLeavesTheProcessSupervised(t *testing.T) {
	t.Parallel()
	tell(t).guarded().condemn(OverLimit).on(Terminated{Outcome{Class: Failed, Observation: Alive, Main: first}}).
		is(Up, Running, 0).emits(Watch{first})
	st := tell(t).guarded().condemn(OverLimit).on(Terminated{Outcome{Class: Refused}}).is(Up, Running, 0)
	st.emits(Search{st.s.Gen})
}

func TestHoldPutsOffWhatIsDue(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().on(Pause{true}).dies().is(Up, Backoff, 1).retry().is(Up, Backoff, 1).emitsNo(AutoStart{})
	if got := st.on(Pause{false}).armed(); got.Delay != 0 {
		t.Fatalf("delay is %v, want none: it was due", got.Delay)
	}
	st.retry().emits(AutoStart{})

	tell(t).guarded().on(Pause{true}).dies().on(Pause{false}).armsNothing().retry().emits(AutoStart{})
}

func TestHoldEndsAnAutomaticStartAndNoOperation(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies().retry().on(Pause{true}).emits(Yield{})
	st.on(AutoStarted{Outcome: Outcome{Class: Interrupted}}).is(Up, Backoff, 1).retry().emitsNo(AutoStart{})
	st.submit(Stop, guarded()).finish(Already, Gone, Identity{}).on(Pause{false}).armsNothing()
	tell(t).on(Pause{true}).submit(Start, guarded()).is("", Starting, 0).finish(Done, Alive, first).is(Up, Running, 0)
}

func TestRivalThatIsKinTakesOver(t *testing.T) {
	t.Parallel()
	tell(t).guarded().on(PidFileConflict{Main: first, Other: second, Kin: true}).is(Up, Running, 0).
		emits(Watch{second}).emits(Emit{Notice: PIDChanged, Main: second, Other: first})
}

func TestTwoMastersAreToldOnceAndLeftAlone(t *testing.T) {
	t.Parallel()
	told := Emit{Notice: ConflictPersists, Main: first, Other: second}
	rival := PidFileConflict{Main: first, Other: second}
	st := tell(t).guarded().on(rival).emitsNo(told).after(time.Second).on(rival).emitsNo(told)
	st.after(5 * time.Second).on(rival).emits(told).after(time.Hour).on(rival).emitsNo(told)
	if st.s.Main != first {
		t.Fatalf("process is %v, want %v", st.s.Main, first)
	}
	st.on(PidFileConflict{Main: first}).on(rival).after(5 * time.Second).on(rival).emits(told)

	st = tell(t).guarded().on(rival).on(Died{first})
	st.on(Observed{Gen: st.s.Gen, Observation: Alive, Main: second}).is(Up, Running, 0).
		emits(Emit{Notice: PIDChanged, Main: second, Other: first})
}

func TestFrozenProcessIsToldAndLeftAlone(t *testing.T) {
	t.Parallel()
	told := Emit{Notice: StoppedBySignal, Main: first}
	st := tell(t).guarded().on(Suspended{first, true}).emits(told).is(Up, Running, 0)
	st.on(Suspended{first, true}).emitsNo(told).on(Suspended{first, false}).emitsNo(told).on(Suspended{first, true}).emits(told)
}

func TestDoubtIsToldOnceAnHour(t *testing.T) {
	t.Parallel()
	told := Emit{Notice: StillIndeterminate, Main: first}
	st := tell(t).guarded()
	doubt := func() *story { return st.on(Observed{Gen: st.s.Gen, Observation: Indeterminate}) }
	for range maxIndeterminate - 1 {
		doubt().emitsNo(told)
	}
	doubt().emits(told)
	st.after(59 * time.Minute)
	doubt().emitsNo(told)
	st.after(time.Minute)
	doubt().emits(told)
	doubt().emitsNo(told)
}

func TestNothingStartsBeforeTheHostHasSettled(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies().after(time.Minute).on(Recovered{NotBefore: Moment(90 * time.Second)})
	if got := st.armed().Least; got != 30*time.Second {
		t.Fatalf("earliest start in %v, want 30s", got)
	}
	st.after(time.Minute).on(Fired{RetryTimer, st.s.Gen}).failed(NoFault)
	if got := st.armed().Least; got != 0 {
		t.Fatalf("earliest start in %v, want no bound", got)
	}
}

func TestAgentThatIsRestartedPutsNothingOff(t *testing.T) {
	t.Parallel()
	st := tell(t).guarded().dies().after(4 * time.Second).on(Recovered{})
	if got := st.armed().Delay; got != 6*time.Second {
		t.Fatalf("delay is %v, want what was left of 10s, 6s", got)
	}
	st.after(5 * time.Second).on(Recovered{})
	if got := st.armed().Delay; got != guarded().RecoverDelay {
		t.Fatalf("delay is %v, want %v", got, guarded().RecoverDelay)
	}
	st = tell(t).guarded().dies()
	for range 4 {
		st.retry().failed(NoFault)
	}
	st.after(9 * time.Minute).on(Recovered{})
	if got := st.armed().Delay; got != time.Minute {
		t.Fatalf("delay is %v, want what was left of 10m, 1m", got)
	}
}

func TestProofIsNotBegunAnewByAgentsAndOperations(t *testing.T) {
	t.Parallel()
	left := func(st *story) time.Duration { return st.armed().Delay }
	st := tell(t).guarded()
	if got := left(st); got != 10*time.Minute {
		t.Fatalf("proven in %v, want 10m", got)
	}
	st.after(4 * time.Minute).on(Recovered{}).on(Observed{Gen: st.s.Gen, Observation: Alive, Main: first})
	if got := left(st); got != 6*time.Minute {
		t.Fatalf("after the agent's restart proven in %v, want 6m", got)
	}
	if got := left(st.submit(Reload, guarded()).after(7*time.Minute).finish(Done, Alive, first)); got != 0 {
		t.Fatalf("after an operation proven in %v, want at once", got)
	}
	if got := left(st.submit(Restart, guarded()).finish(Done, Alive, second)); got != 10*time.Minute {
		t.Fatalf("another process is proven in %v, want 10m", got)
	}
}
