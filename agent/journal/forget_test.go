package journal

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/agentproto"
)

// smallMemory returns limits with which the next generation drops almost all operations.
func smallMemory() limits {
	l := memLimits()
	l.retainOps, l.retainFences = 10, 10
	return l
}

func openIn(tb rapid.TB, d disk, l limits) *Journal {
	tb.Helper()
	j, _, err := open(memDir, d, l, quiet())
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

// over records an operation from its acceptance to its acknowledgement.
func over(tb rapid.TB, j *Journal, op Op) {
	tb.Helper()
	if v := receive(tb, j, op); v[0] != (Admission{}) {
		tb.Fatalf("%v with fence %d is not new: %+v", op.ID, op.Fence, v[0])
	}
	finish(tb, j, op.ID)
	if err := j.Acknowledge([]ID{op.ID}); err != nil {
		tb.Fatal(err)
	}
}

func rotateNow(tb rapid.TB, j *Journal) {
	tb.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.rotate(); err != nil {
		tb.Fatal(err)
	}
}

func known(j *Journal, id ID) bool {
	_, _, known := j.Result(id)
	return known
}

// fenced returns a start by the task with the given number, of a process of its own.
func fenced(fence int64) Op {
	op := startOp(fmt.Sprint("task ", fence), 0)
	op.Fence = fence
	return op
}

func looks(n int64) Op {
	op := fenced(n)
	op.Task, op.Action = fmt.Sprint("look ", n), agentproto.ActionStatus
	return op
}

func TestOperationThatWasForgottenIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	d := memDisk{}
	j := openIn(t, d, smallMemory())
	first := fenced(1)
	over(t, j, first)
	if err := j.SaveProcess(first.Spec.Key, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	for fence := range int64(20) {
		over(t, j, fenced(fence+2))
	}
	rotateNow(t, j)
	if known(j, first.ID) {
		t.Fatal("the operation is not forgotten: the test shows nothing")
	}
	for _, reopened := range []bool{false, true} {
		if reopened {
			mustClose(t, j)
			j = openIn(t, d, smallMemory())
		}
		for _, op := range []Op{first, fenced(2)} { // of a process with a fence, and of one whose fence is forgotten as well
			if v := receive(t, j, op); v[0].Refused == nil {
				t.Errorf("reopened %v: %v is executed a second time: %+v", reopened, op.ID, v[0])
			}
		}
	}
	again := first
	again.Task, again.Fence = "later", 100
	if v := receive(t, j, again, fenced(101)); v[0] != (Admission{}) || v[1] != (Admission{}) {
		t.Errorf("later commands are refused: %+v %+v", v[0].Refused, v[1].Refused)
	}
}

func TestStatusesDoNotPushOutWhatChangedTheHost(t *testing.T) {
	t.Parallel()
	j := openIn(t, memDisk{}, smallMemory())
	for fence := range int64(5) {
		over(t, j, fenced(fence+1))
	}
	for n := range int64(50) {
		over(t, j, looks(n+10))
	}
	rotateNow(t, j)
	for fence := range int64(5) {
		if !known(j, fenced(fence+1).ID) {
			t.Errorf("start with fence %d was forgotten before statuses", fence+1)
		}
	}
	if n := len(j.index.ops); n != 10 {
		t.Errorf("%d operations are remembered, the limit is 10", n)
	}
	if !known(j, looks(59).ID) {
		t.Error("the latest status is forgotten though there is room")
	}
}

// A step of the host's clock must not drop operations: their age is measured by fences, which contain
// the servers' time.
func TestStepOfTheHostClockForgetsNothing(t *testing.T) {
	t.Parallel()
	d := memDisk{}
	l := memLimits()
	j := openIn(t, d, l)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	over(t, j, fenced(now.UnixMicro()))
	for _, step := range []time.Duration{8 * 24 * time.Hour, -8 * 24 * time.Hour} {
		j.now = func() time.Time { return time.Now().Add(step) }
		later := fenced(now.Add(time.Minute).UnixMicro() + int64(step.Hours()))
		later.AcceptedAt = j.now()
		over(t, j, later)
		rotateNow(t, j)
		if !known(j, fenced(now.UnixMicro()).ID) {
			t.Errorf("a step of %v forgot an operation of a minute ago", step)
		}
		if v := receive(t, j, fenced(now.UnixMicro())); !v[0].Known {
			t.Errorf("a step of %v: the operation is executed again: %+v", step, v[0])
		}
	}
	// A command of eight days later by the servers' clock does age it.
	over(t, j, fenced(now.Add(8*24*time.Hour).UnixMicro()))
	rotateNow(t, j)
	if known(j, fenced(now.UnixMicro()).ID) {
		t.Error("an operation of eight days ago is remembered")
	}
	if v := receive(t, j, fenced(now.UnixMicro())); v[0].Refused == nil {
		t.Errorf("after eight days it is executed again: %+v", v[0])
	}
}

func TestFencesOutliveOperationsAndLeaveAFloor(t *testing.T) {
	t.Parallel()
	d := memDisk{}
	j := openIn(t, d, memLimits())
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old, kept := fenced(now.UnixMicro()), fenced(now.UnixMicro()+1)
	over(t, j, old)
	over(t, j, kept)
	if err := j.SaveProcess(kept.Spec.Key, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{29 * 24 * time.Hour, 31 * 24 * time.Hour} {
		over(t, j, fenced(now.Add(after).UnixMicro()))
		rotateNow(t, j)
		_, oldKept := j.index.fences[old.Spec.Key]
		if forgotten := after > j.limits.retainFence; oldKept == forgotten {
			t.Errorf("after %v the fence of a process without a record: kept %v", after, oldKept)
		}
		if _, ok := j.index.fences[kept.Spec.Key]; !ok {
			t.Errorf("after %v the fence of a process with a record is forgotten", after)
		}
	}
	mustClose(t, j)
	j = openIn(t, d, memLimits())
	old.Task = "another"
	if v := receive(t, j, old); v[0].Refused == nil {
		t.Error("a command as old as a forgotten fence is taken for new")
	}
	old.Fence = kept.Fence + 1
	if v := receive(t, j, old); v[0] != (Admission{}) {
		t.Errorf("a command above all forgotten fences is refused: %+v", v[0].Refused)
	}
}

// TestNothingIsEverReceivedTwice drives a journal with little memory through
// commands, repeats, statuses, generations, restarts and clock steps. Although it drops operations, no
// command that changes the host may be new a second time, and a command with a higher fence than all
// earlier ones must always be new.
func TestNothingIsEverReceivedTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := memDisk{}
		j := openIn(t, d, smallMemory())
		var sent []Op
		fence, step := int64(0), time.Duration(0)
		clock := func() { j.now = func() time.Time { return time.Now().Add(step) } }
		t.Repeat(map[string]func(*rapid.T){
			"command": func(t *rapid.T) {
				fence += rapid.Int64Range(1, int64(40*24*time.Hour/time.Microsecond)).Draw(t, "later")
				op := fenced(fence)
				op.Spec.Key = fmt.Sprint("process ", rapid.IntRange(0, 30).Draw(t, "process"))
				over(t, j, op)
				sent = append(sent, op)
				if rapid.Bool().Draw(t, "kept") {
					if err := j.SaveProcess(op.Spec.Key, json.RawMessage(`1`)); err != nil {
						t.Fatal(err)
					}
				}
			},
			"status": func(t *rapid.T) {
				fence++
				over(t, j, looks(fence))
			},
			"repeat": func(t *rapid.T) {
				if len(sent) == 0 {
					return
				}
				op := rapid.SampledFrom(sent).Draw(t, "operation")
				if v := receive(t, j, op); v[0] == (Admission{}) {
					t.Fatalf("%v with fence %d is executed again", op.ID, op.Fence)
				}
			},
			"clock step": func(t *rapid.T) {
				step = time.Duration(rapid.IntRange(-100, 100).Draw(t, "days")) * 24 * time.Hour
				clock()
			},
			"generation": func(t *rapid.T) { rotateNow(t, j) },
			"restart": func(t *rapid.T) {
				mustClose(t, j)
				j = openIn(t, d, smallMemory())
				clock()
			},
		})
		mustClose(t, j)
	})
}
