package supervise

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world simulates the goroutine that owns a process: it performs effects, ends work at random
// times and checks the invariants.
type world struct {
	s         State
	working   int             // pieces of work in progress
	ended     map[string]int  // number of results by operation
	submitted map[string]bool // submitted operations
	verified  map[Identity]bool
	fence     int64
	pid       int
	now       Moment
	looks     []int   // generations of all searches requested: each may end late
	armed     []Fired // all timers armed: each may fire late, even twice
}

func (w *world) step(t *rapid.T, e Event) {
	before := w.s
	var effects []Effect
	w.s, effects = Step(w.s, w.now, e)
	for _, effect := range effects {
		switch effect := effect.(type) {
		case Perform:
			w.working++
			if main := w.s.Main; main != (Identity{}) && !w.verified[main] {
				t.Fatalf("%#v begins an operation on %v, which no search has verified", e, main)
			}
		case Terminate:
			w.working++
			terminateRequested, ok := e.(TerminateRequested)
			if !ok || before.Paused || before.Phase != Running || effect.Main != before.Main || effect.Main != terminateRequested.Main || !w.verified[effect.Main] {
				t.Fatalf("termination of %v by %#v in phase %q of %v, paused %v", effect.Main, e, before.Phase, before.Main, before.Paused)
			}
		case AutoStart:
			w.working++
			if before.Desired != Up || before.Paused {
				t.Fatalf("automatic start while the process is wanted %q, paused %v", before.Desired, before.Paused)
			}
			if _, ok := e.(Ticked); ok && (!before.Policy.Periodic || before.Phase == Running || before.Phase == Uncertain) {
				t.Fatalf("a tick starts in phase %q, policy %+v", before.Phase, before.Policy)
			} else if ok {
				continue
			}
			if fired, ok := e.(Fired); !ok || before.Policy.Periodic || before.Phase != Backoff && before.Phase != Fatal || fired.Gen != before.Gen {
				t.Fatalf("automatic start by %#v in phase %q, generation %d", e, before.Phase, before.Gen)
			}
		case End:
			w.end(t, effect.ID)
		case Refuse:
			w.end(t, effect.ID)
		case Watch:
			if effect.Main != (Identity{}) && w.s.Desired != Up {
				t.Fatalf("watch of %v while wanted %q", effect.Main, w.s.Desired)
			}
		case Search:
			w.looks = append(w.looks, effect.Gen)
		case Arm:
			if effect.Gen > w.s.Gen {
				t.Fatalf("timer of generation %d in generation %d", effect.Gen, w.s.Gen)
			}
			w.armed = append(w.armed, Fired{effect.Timer, effect.Gen})
		}
	}
	if o, ok := e.(Observed); ok && len(effects) > 0 && (before.Work != Idle || o.Gen != before.Gen) {
		t.Fatalf("look of generation %d acts in generation %d with work %d", o.Gen, before.Gen, before.Work)
	}
	w.check(t)
}

func (w *world) end(t *rapid.T, id string) {
	if !w.submitted[id] {
		t.Fatalf("operation %s ended and was never asked for", id)
	}
	if w.ended[id]++; w.ended[id] > 1 {
		t.Fatalf("operation %s ended twice", id)
	}
}

func (w *world) check(t *rapid.T) {
	if w.working > 1 {
		t.Fatalf("%d pieces of work at once", w.working)
	}
	if (w.s.Work != Idle) != (w.working == 1) {
		t.Fatalf("work is %d with %d pieces under way", w.s.Work, w.working)
	}
	if w.s.Main != (Identity{}) && !w.verified[w.s.Main] {
		t.Fatalf("%v is the process, and nobody verified it", w.s.Main)
	}
	if (w.s.Phase == Fatal) && w.s.History.GaveUp == "" {
		t.Fatal("given up without a reason")
	}
	if w.s.History.Probes > w.s.Policy.ProbeTries || w.s.History.Probes < 0 {
		t.Fatalf("%d rare attempts, %d allowed", w.s.History.Probes, w.s.Policy.ProbeTries)
	}
	if w.s.Work == Idle && len(w.s.Queue) > 0 {
		t.Fatalf("idle with %d operations waiting", len(w.s.Queue))
	}
}

func (w *world) outcome(t *rapid.T) Outcome {
	o := Outcome{
		Class:       rapid.SampledFrom([]Class{Done, Already, Failed, Refused, Interrupted}).Draw(t, "class"),
		Fault:       rapid.SampledFrom([]Fault{NoFault, BadSetup, HostExhausted}).Draw(t, "fault"),
		Observation: rapid.SampledFrom([]Observation{Unseen, Gone, Alive, Indeterminate}).Draw(t, "sight"),
		Other:       rapid.Bool().Draw(t, "other"),
	}
	o.Main = w.seen(t, o.Observation)
	return o
}

// seen returns an identity for an observation: the known one or a new one.
func (w *world) seen(t *rapid.T, sight Observation) Identity {
	if sight != Alive {
		return Identity{}
	}
	if w.s.Main != (Identity{}) && rapid.Bool().Draw(t, "same") {
		return w.s.Main
	}
	w.pid++
	id := Identity{BootID: "boot", PID: w.pid, Start: uint64(w.pid)}
	w.verified[id] = true
	return id
}

func testInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: State{Saved: Saved{Phase: Unknown}}, ended: map[string]int{}, submitted: map[string]bool{}, verified: map[Identity]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				w.fence += rapid.Int64Range(-2, 3).Draw(t, "fence")
				kind := rapid.SampledFrom([]string{"resident", "once", "periodic"}).Draw(t, "kind")
				op := Op{
					ID: fmt.Sprint(len(w.submitted)), Item: len(w.submitted), Fence: w.fence,
					Action: rapid.SampledFrom([]Action{Start, Stop, Supervise, Release, Restart, Reload, Kill}).Draw(t, "action"),
					Policy: Policy{
						Resident: kind == "resident", Periodic: kind == "periodic", Retries: 2, Interval: 1, MaxDelay: time.Minute,
						FlapStarts: 3, FlapWindow: time.Hour, SetupTries: 2, LimitKills: 2, LimitWindow: time.Hour,
						ProbeInterval: time.Minute, ProbeTries: 2, ProbeFor: time.Hour, ConflictWait: time.Second,
					},
				}
				w.submitted[op.ID] = true
				w.step(t, Submitted{op})
			},
			"finish": func(t *rapid.T) {
				if w.s.Work == Operating {
					w.working--
					w.step(t, Finished{ID: w.s.Op.ID, Outcome: w.outcome(t)})
				}
			},
			"autostarted": func(t *rapid.T) {
				if w.s.Work == AutoStarting {
					w.working--
					w.step(t, AutoStarted{Outcome: w.outcome(t), Ran: rapid.Bool().Draw(t, "ran")})
				}
			},
			"condemn": func(t *rapid.T) {
				main := w.s.Main
				if rapid.Bool().Draw(t, "former") {
					main = Identity{BootID: "boot", PID: w.pid, Start: uint64(w.pid)}
				}
				w.step(t, TerminateRequested{Main: main, Why: rapid.SampledFrom([]Why{OverLimit, Unhealthy}).Draw(t, "why")})
			},
			"takendown": func(t *rapid.T) {
				if w.s.Work == Terminating {
					w.working--
					w.step(t, Terminated{w.outcome(t)})
				}
			},
			"pause": func(t *rapid.T) { w.step(t, Pause{rapid.Bool().Draw(t, "on")}) },
			"rival": func(t *rapid.T) {
				w.step(t, PidFileConflict{Main: w.s.Main, Other: w.seen(t, Alive), Kin: rapid.Bool().Draw(t, "kin")})
			},
			"suspend": func(t *rapid.T) { w.step(t, Suspended{w.s.Main, rapid.Bool().Draw(t, "on")}) },
			"wait":    func(t *rapid.T) { w.now += Moment(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "time")) },
			"recover": func(t *rapid.T) {
				if w.s.Work == Idle {
					w.step(t, Recovered{NotBefore: w.now + Moment(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "grace"))})
				}
			},
			"observe": func(t *rapid.T) {
				if len(w.looks) > 0 {
					gen := rapid.SampledFrom(w.looks).Draw(t, "look")
					sight := rapid.SampledFrom([]Observation{Gone, Alive, Indeterminate}).Draw(t, "sight")
					w.step(t, Observed{Gen: gen, Observation: sight, Main: w.seen(t, sight)})
				}
			},
			"die": func(t *rapid.T) { w.step(t, Died{w.s.Main}) },
			"fire": func(t *rapid.T) {
				if len(w.armed) > 0 {
					w.step(t, rapid.SampledFrom(w.armed).Draw(t, "timer"))
				}
			},
			"tick":    func(t *rapid.T) { w.step(t, Ticked{}) },
			"sweep":   func(t *rapid.T) { w.step(t, Swept{}) },
			"strange": func(t *rapid.T) { w.step(t, Finished{ID: "nobody"}) },
		})
		for w.s.Work != Idle {
			w.working--
			switch w.s.Work {
			case AutoStarting:
				w.step(t, AutoStarted{Outcome: Outcome{Observation: Gone}})
			case Terminating:
				w.step(t, Terminated{Outcome{Observation: Gone}})
			default:
				w.step(t, Finished{ID: w.s.Op.ID, Outcome: Outcome{Observation: Gone}})
			}
		}
		for id := range w.submitted {
			if w.ended[id] != 1 {
				t.Fatalf("operation %s ended %d times", id, w.ended[id])
			}
		}
	})
}
