package supervise

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world plays the goroutine that owns a process: it performs effects, ends
// work when it likes, and checks what must hold whatever happens.
type world struct {
	s         State
	working   int             // commands in flight
	ended     map[string]int  // results per operation
	submitted map[string]bool // operations asked for
	verified  map[Identity]bool
	fence     int64
	pid       int
	looks     []int   // every look ever asked for: any may end late
	armed     []Fired // every timer ever armed: any may fire late, and even twice
}

func (w *world) step(t *rapid.T, e Event) {
	before := w.s
	var effects []Effect
	w.s, effects = Step(w.s, e)
	for _, effect := range effects {
		switch effect := effect.(type) {
		case Perform:
			w.working++
			if effect.Main != (Identity{}) && !w.verified[effect.Main] {
				t.Fatalf("%#v hands over %v, which nobody verified", e, effect.Main)
			}
		case AutoStart:
			w.working++
			if before.Desired != Up {
				t.Fatalf("automatic start while the process is wanted %q", before.Desired)
			}
			if fired, ok := e.(Fired); !ok || before.Phase != Backoff || fired.Gen != before.Gen {
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
		case Look:
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
	if w.s.Work == Idle && len(w.s.Queue) > 0 {
		t.Fatalf("idle with %d operations waiting", len(w.s.Queue))
	}
}

func (w *world) outcome(t *rapid.T) Outcome {
	o := Outcome{
		Class: rapid.SampledFrom([]Class{Done, Already, Failed, Refused, Interrupted}).Draw(t, "class"),
		Sight: rapid.SampledFrom([]Sight{Unseen, Gone, Alive, Doubt}).Draw(t, "sight"),
		Other: rapid.Bool().Draw(t, "other"),
	}
	o.Main = w.seen(t, o.Sight)
	return o
}

// seen is the identity that goes with a sight: the known one or a new one.
func (w *world) seen(t *rapid.T, sight Sight) Identity {
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

func TestInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: State{Phase: Unknown}, ended: map[string]int{}, submitted: map[string]bool{}, verified: map[Identity]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				w.fence += rapid.Int64Range(-2, 3).Draw(t, "fence")
				op := Op{
					ID: fmt.Sprint(len(w.submitted)), Item: len(w.submitted), Fence: w.fence,
					Action: rapid.SampledFrom([]Action{Start, Stop, Supervise, Release, Restart, Reload, Kill}).Draw(t, "action"),
					Policy: Policy{Resident: rapid.Bool().Draw(t, "resident"), Retries: 2, Interval: 1, MaxDelay: time.Minute},
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
					w.step(t, AutoStarted{w.outcome(t)})
				}
			},
			"observe": func(t *rapid.T) {
				if len(w.looks) > 0 {
					gen := rapid.SampledFrom(w.looks).Draw(t, "look")
					sight := rapid.SampledFrom([]Sight{Gone, Alive, Doubt}).Draw(t, "sight")
					w.step(t, Observed{Gen: gen, Sight: sight, Main: w.seen(t, sight)})
				}
			},
			"die": func(t *rapid.T) { w.step(t, Died{w.s.Main}) },
			"fire": func(t *rapid.T) {
				if len(w.armed) > 0 {
					w.step(t, rapid.SampledFrom(w.armed).Draw(t, "timer"))
				}
			},
			"sweep":   func(t *rapid.T) { w.step(t, Swept{}) },
			"strange": func(t *rapid.T) { w.step(t, Finished{ID: "nobody"}) },
		})
		for w.s.Work != Idle {
			w.working--
			if w.s.Work == AutoStarting {
				w.step(t, AutoStarted{Outcome{Sight: Gone}})
			} else {
				w.step(t, Finished{ID: w.s.Op.ID, Outcome: Outcome{Sight: Gone}})
			}
		}
		for id := range w.submitted {
			if w.ended[id] != 1 {
				t.Fatalf("operation %s ended %d times", id, w.ended[id])
			}
		}
	})
}
