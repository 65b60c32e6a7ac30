package supervise

import (
	"slices"
	"testing"
	"time"
)

var periodic = Policy{Periodic: true, Retries: 3, StableAfter: 10 * time.Minute, LongRun: 100 * time.Second, MaxDelay: 5 * time.Minute}

// registered submits a supervise operation for a periodic process that does not run.
func (st *story) registered() *story {
	return st.submit(Supervise, periodic).finish(Done, Gone, Identity{})
}

// ticks begins a run; it fails if the tick starts nothing.
func (st *story) ticks() *story {
	st.t.Helper()
	st.on(Ticked{})
	if !slices.Contains(st.effects, Effect(AutoStart{})) {
		st.t.Fatalf("the tick does not start it: %+v", st.effects)
	}
	return st
}

// ran reports the end of a run's start command.
func (st *story) ran(c Class, sight Observation, main Identity) *story {
	return st.on(AutoStarted{Ran: true, Outcome: Outcome{Class: c, Observation: sight, Main: main}})
}

func (st *story) starts() bool { return slices.Contains(st.effects, Effect(AutoStart{})) }

func (st *story) tells(news Notice) bool {
	return slices.ContainsFunc(st.effects, func(e Effect) bool {
		tell, ok := e.(Emit)
		return ok && tell.Notice == news
	})
}

// waits fails unless the process only waits for its next tick.
func (st *story) waits() *story {
	st.t.Helper()
	armed := slices.ContainsFunc(st.effects, func(e Effect) bool {
		arm, ok := e.(Arm)
		return ok && arm.Timer == RetryTimer
	})
	if st.s.Desired != Up || st.s.Phase != Stopped || armed {
		st.t.Fatalf("wanted %q in phase %q with %+v", st.s.Desired, st.s.Phase, st.effects)
	}
	return st
}

func TestPeriodicProcessWaitsForItsTicks(t *testing.T) {
	t.Parallel()
	st := tell(t).registered().waits()
	for range 20 { // more starts than the flapping limit of resident processes
		st.ticks().ran(Done, Alive, first)
		if st.s.Phase != Running || st.tells(Restarted) {
			t.Fatalf("phase %q, %+v", st.s.Phase, st.effects)
		}
		st.dies().waits().after(time.Second)
		if st.s.Failures != 0 || st.s.Restarts != 0 {
			t.Fatalf("%d failures, %d restarts", st.s.Failures, st.s.Restarts)
		}
	}
	st.ticks().ran(Done, Gone, Identity{}).waits() // the run ended within its start window
	st.on(Swept{})
	if len(st.effects) > 0 {
		t.Fatalf("between its runs it is looked for: %+v", st.effects)
	}
}

func TestPeriodicProcessIsRegisteredByWhateverStartsIt(t *testing.T) {
	t.Parallel()
	tell(t).submit(Start, periodic).finish(Done, Gone, Identity{}).waits().ticks()
	tell(t).submit(Restart, periodic).finish(Done, Gone, Identity{}).waits().ticks()
	st := tell(t).submit(Start, periodic).finish(Already, Alive, first)
	if st.s.Desired != Up || st.s.Phase != Running {
		t.Fatalf("wanted %q in phase %q", st.s.Desired, st.s.Phase)
	}
}

func testRunsThatOverlapAreLeftOut(t *testing.T) {
	t.Parallel()
	st := tell(t).registered().ticks()
	for n := 1; n <= 5; n++ {
		if n == 2 {
			st.ran(Done, Alive, first) // the start command takes longer than a period
		}
		st.on(Ticked{})
		if st.starts() || st.s.Overlaps != n || st.tells(Overlapping) != (n == 3) {
			t.Fatalf("after tick %d: %d overlaps, %+v", n, st.s.Overlaps, st.effects)
		}
	}
	if st.dies().waits().ticks().ran(Done, Alive, second); st.s.Overlaps != 0 {
		t.Fatalf("%d overlaps while it runs again", st.s.Overlaps)
	}
}

func TestRunThatSomebodyElseBeganIsAnOverlap(t *testing.T) {
	t.Parallel()
	st := tell(t).registered()
	for n := 1; n <= 3; n++ {
		if n == 1 {
			st.ticks().on(AutoStarted{Outcome: Outcome{Class: Done, Observation: Alive, Main: first}})
		} else {
			st.on(Ticked{})
		}
		if st.s.Overlaps != n || st.tells(ExternalStart) || st.tells(Overlapping) != (n == 3) {
			t.Fatalf("%d overlaps, %+v", st.s.Overlaps, st.effects)
		}
	}
}

func TestFailedRunsWaitForTheNextTickAndAreTold(t *testing.T) {
	t.Parallel()
	st := tell(t).registered()
	for n := 1; n <= 5; n++ {
		st.ticks().ran(Failed, Gone, Identity{}).waits()
		if st.s.Failures != n || st.tells(RunsFailed) != (n == 3) {
			t.Fatalf("after run %d: %d failures, %+v", n, st.s.Failures, st.effects)
		}
	}
	if st.ticks().ran(Done, Gone, Identity{}).waits(); st.s.Failures != 0 {
		t.Fatalf("%d failures after a run that was fine", st.s.Failures)
	}
	st.ticks().on(AutoStarted{Outcome: Outcome{Class: Failed, Fault: HostExhausted, Observation: Gone}}).waits()
	if st.s.Failures != 0 {
		t.Fatal("that the host had no room counts against the process")
	}
}

func TestTicksThatCannotBeServed(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]*story{
		"resident":           tell(t).running(),
		"never heard of":     tell(t),
		"stopped":            tell(t).registered().submit(Stop, periodic).finish(Already, Gone, Identity{}),
		"released":           tell(t).registered().submit(Release, periodic).finish(Done, Gone, Identity{}),
		"held":               tell(t).registered().on(Pause{On: true}),
		"operation":          tell(t).registered().submit(Reload, periodic),
		"nobody has looked":  tell(t).registered().on(Recovered{}),
		"right after a boot": tell(t).registered().on(Recovered{NotBefore: Moment(time.Minute)}).looksGone(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := st.s.Phase
			if st.on(Ticked{}); st.starts() || st.s.Phase != was || st.s.Ticks(st.now) {
				t.Fatalf("phase %q after %q, %+v", st.s.Phase, was, st.effects)
			}
		})
	}
	tell(t).registered().on(Recovered{NotBefore: Moment(time.Minute)}).looksGone().after(time.Minute).ticks()
	tell(t).registered().on(Pause{On: true}).on(Pause{}).ticks()
}

func (st *story) looksGone() *story { return st.on(Observed{Gen: st.s.Gen, Observation: Gone}) }

func TestOperationTakesOverFromARun(t *testing.T) {
	t.Parallel()
	st := tell(t).registered().ticks().submit(Stop, periodic)
	if !slices.Contains(st.effects, Effect(Yield{})) {
		t.Fatalf("the run does not give way: %+v", st.effects)
	}
	st.on(AutoStarted{Outcome: Outcome{Class: Interrupted, Observation: Gone}})
	if st.s.Work != Operating {
		t.Fatalf("work is %d", st.s.Work)
	}
	if st.finish(Already, Gone, Identity{}); st.s.Desired != Down || st.s.Phase != Stopped {
		t.Fatalf("wanted %q in phase %q", st.s.Desired, st.s.Phase)
	}
}
