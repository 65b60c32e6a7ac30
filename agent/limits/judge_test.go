package limits

import (
	"fmt"
	"testing"
	"time"
)

const period = 5 * time.Second

var rules = Rules{Window: time.Minute, ArmAfter: time.Minute, Spacing: 10 * time.Second}

// host is a judge with a clock that reads the same process trees repeatedly.
type host struct {
	t     *testing.T
	judge *Judge
	at    time.Duration
	trees []Tree
	pools []Pool
}

func newHost(t *testing.T, trees ...Tree) *host {
	t.Helper()
	return &host{t: t, judge: NewJudge(rules), at: time.Hour, trees: trees}
}

// tree is a process that has run for long and may use a part of the host.
func tree(key string, cpu, memory float64) Tree {
	return Tree{
		Key: key, Namespace: "shop", Main: Process{PID: 100, Start: 1}, Age: time.Hour,
		CPU: cpu, CPUKnown: true, Memory: memory,
	}
}

func (t Tree) limits(cpu, memory float64) Tree { t.CPULimit, t.MemoryLimit = cpu, memory; return t }

func (t Tree) started(at uint64) Tree { t.Main.Start = at; return t }

// read advances the clock and passes one reading to the judge.
func (h *host) read(after time.Duration) (Breach, bool) {
	h.at += after
	for i := range h.trees {
		h.trees[i].Age += after
	}
	return h.judge.Read(Reading{At: h.at, Period: period, Trees: h.trees, Pools: h.pools})
}

// until reads until there is a breach, and returns the number of readings; 0 = no breach within an
// hour.
func (h *host) until() (Breach, int) {
	for n := 1; n <= 720; n++ {
		if b, found := h.read(period); found {
			return b, n
		}
	}
	return Breach{}, 0
}

// quiet makes the given number of readings, and fails on a breach.
func (h *host) quiet(readings int) {
	h.t.Helper()
	for n := range readings {
		if b, found := h.read(period); found {
			h.t.Fatalf("reading %d of %d finds %+v", n+1, readings, b)
		}
	}
}

// after fails unless there is a breach after exactly the given number of further readings.
func (h *host) after(readings int, key string) Breach {
	h.t.Helper()
	h.quiet(readings - 1)
	b, found := h.read(period)
	if !found || b.Key != key {
		h.t.Fatalf("reading %d finds %+v, want one of %s", readings, b, key)
	}
	return b
}

// takeDown replaces the process of a breach by a successor.
func (h *host) takeDown(b Breach) {
	h.judge.Begin()
	h.judge.End(b, h.at, true)
	for i := range h.trees {
		if h.trees[i].Key == b.Key {
			h.trees[i].Main.PID++
			h.trees[i].Main.Start += 1000
			h.trees[i].Age = 0
		}
	}
}

func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F71_one_busy_thread", func(t *testing.T) {
		t.Parallel()
		// One thread of sixteen CPUs is 6.25 percent of the host, of one CPU all.
		newHost(t, tree("a", 100.0/16, 0).limits(50, 0)).quiet(720)
		b := newHost(t, tree("a", 100, 0).limits(50, 0)).after(13, "a")
		if b.Metric != CPU || b.Value != 100 || b.Limit != 50 || b.Window != time.Minute || b.Pool != nil {
			t.Fatalf("breach is %+v", b)
		}
	})
	t.Run("F72_spikes_and_sawtooth", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, tree("a", 0, 0).limits(50, 0))
		for range 60 { // 20 s of every minute
			h.trees[0].CPU = 100
			h.quiet(4)
			h.trees[0].CPU = 10
			h.quiet(8)
		}
		h = newHost(t, tree("a", 0, 0).limits(50, 0))
		breaches := 0
		for n := range 720 { // never clearly below the limit again
			h.trees[0].CPU = 48 + float64(n%6)
			if b, found := h.read(period); found {
				breaches++
				h.judge.Begin()
				h.judge.End(b, h.at, true) // and it outlives that
			}
		}
		if breaches != 1 {
			t.Fatalf("%d breaches around the limit, want 1", breaches)
		}
		h.trees[0].CPU = 10
		h.quiet(12)
		h.trees[0].CPU = 90
		if _, n := h.until(); n == 0 {
			t.Fatal("never found over the limit again")
		}
	})
	t.Run("F55_host_suspended", func(t *testing.T) { t.Run("begins anew", testWhatCannotBeComparedBeginsAnew) })
	t.Run("F76_pool_victims", func(t *testing.T) {
		t.Parallel()
		testPoolVictims(t)
	})
	t.Run("F77_deferred", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, tree("a", 0, 40).limits(0, 30))
		h.trees[0].Deferred = true
		h.quiet(20)
		h.trees[0].Deferred = false
		h.takeDown(h.after(1, "a"))

		h = newHost(t, tree("a", 0, 40).limits(0, 30))
		h.trees[0].Deferred = true
		h.quiet(20)
		h.trees[0].Memory = 20 // it came to its senses meanwhile
		h.quiet(1)
		h.trees[0].Deferred = false
		h.quiet(20)
	})
}

func testPoolVictims(t *testing.T) {
	t.Helper()
	for _, byLimit := range []bool{false, true} {
		h := newHost(t, tree("small", 0, 10).limits(0, 20), tree("large", 0, 30).limits(0, 90), tree("tiny", 0, 1).limits(0, 1))
		h.pools = []Pool{{Namespace: "shop", ID: "g", MemoryLimit: 40, MemoryByLimit: byLimit}}
		want := []string{"large", "small", "tiny"}
		if byLimit { // 10/20 against 30/90; tiny is at its own limit, and still minor
			want = []string{"small", "large", "tiny"}
		}
		b := h.after(3, want[0])
		if b.Pool == nil || b.Pool.ID != "g" || b.Value != 41 || b.Limit != 40 || len(b.Members) != 3 || !b.Members[2].Minor {
			t.Fatalf("breach is %+v", b)
		}
		for i, m := range b.Members {
			if m.Key != want[i] {
				t.Fatalf("by limit %t: order is %+v, want %v", byLimit, b.Members, want)
			}
		}
		h.judge.Begin()
		h.quiet(20) // one at a time
		h.judge.End(b, h.at, true)
		h.quiet(11)         // cool-down
		h.after(1, want[0]) // and again, because the pool still exceeds its limit
	}
}

func TestMemoryCountsAfterThreeReadingsInARow(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 40).limits(0, 30))
	b := h.after(3, "a")
	if b.Metric != Memory || b.Value != 40 || b.Limit != 30 || b.Window != 10*time.Second {
		t.Fatalf("breach is %+v", b)
	}
	h = newHost(t, tree("a", 0, 40).limits(0, 30))
	h.quiet(2)
	h.trees[0].Memory = 30
	h.quiet(1)
	h.trees[0].Memory = 31
	h.after(3, "a")
}

func TestProcessMayUseWhatItLikesWhileItWarmsUp(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 100, 90).limits(50, 50))
	h.trees[0].Age = 0
	h.quiet(11)
	h.after(3, "a") // memory
	h = newHost(t, tree("a", 100, 0).limits(50, 50))
	h.trees[0].Age = 0
	h.quiet(11)
	h.after(13, "a")
	h = newHost(t, tree("a", 0, 60), tree("b", 0, 10))
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 50}}
	h.trees[0].Age = 0
	h.quiet(11)
	h.after(3, "a")
}

func testWhatCannotBeComparedBeginsAnew(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*host){
		"another process":  func(h *host) { h.trees[0].Main = Process{PID: 100, Start: 9} },
		"a gap":            func(h *host) { h.at += 3 * period },
		"a clock set back": func(h *host) { h.at -= 10 * period },
		"no process for a moment": func(h *host) {
			trees := h.trees
			h.trees = nil
			h.read(0)
			h.trees = trees
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, tree("a", 100, 0).limits(50, 0))
			h.quiet(12)
			disturb(h)
			h.after(13, "a")
			h = newHost(t, tree("a", 0, 60).limits(0, 50))
			h.quiet(2)
			disturb(h)
			h.after(3, "a")
		})
	}
}

func TestSlowReadingsCoverTheWindowWithFewer(t *testing.T) {
	t.Parallel()
	j, at := NewJudge(rules), time.Duration(0)
	for n := range 6 {
		at += 15 * time.Second
		_, found := j.Read(Reading{At: at, Period: 15 * time.Second, Trees: []Tree{tree("a", 80, 0).limits(50, 0)}})
		if found != (n >= 4) {
			t.Fatalf("reading %d: found is %t", n+1, found)
		}
	}
}

func TestNoLimitIsNeverExceeded(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("none", 100, 100), tree("above", 150, 150).limits(101, 1000))
	h.pools = []Pool{{Namespace: "shop", ID: "none"}, {Namespace: "shop", ID: "above", CPULimit: 101, MemoryLimit: 200}}
	h.quiet(100)
}

func TestOneTakeDownAtATimeAndSpaced(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 60).limits(0, 50), tree("b", 0, 90).limits(0, 50), tree("c", 0, 70).limits(0, 50))
	b := h.after(3, "b") // the worst
	h.judge.Begin()
	h.quiet(30)
	h.judge.End(b, h.at, true)
	h.quiet(1)
	h.takeDown(h.after(1, "c")) // 10 s later
	h.quiet(1)
	h.after(1, "a")
}

func TestTakeDownThatDidNothingIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 60).limits(0, 50))
	b := h.after(3, "a")
	h.judge.Begin()
	h.judge.End(b, h.at, false)
	h.after(1, "a")
}

func TestOwnLimitsComeBeforePools(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 11).limits(0, 10), tree("b", 0, 90))
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 20}}
	if b := h.after(3, "a"); b.Pool != nil {
		t.Fatalf("breach is %+v", b)
	}
}

func TestPoolCountsItsOwnNamespaceAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 30), tree("b", 0, 80))
	h.trees[1].Namespace = "other"
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 40}}
	h.quiet(50)
	h.pools[0].Namespace = "other"
	h.after(3, "b")
}

func TestPoolWaitsForAMemberThatIsDeferred(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 30), tree("b", 0, 40))
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 40}}
	h.trees[1].Deferred = true
	h.quiet(50)
	h.trees[1].Deferred = false
	h.after(1, "b")
}

func TestLastStartedGoesAmongEquals(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 30).started(5), tree("b", 0, 30).started(7), tree("c", 0, 30).started(6))
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 40}}
	h.after(3, "b")
}

func TestMinorMembersGoIfThereAreNoOthers(t *testing.T) {
	t.Parallel()
	members := make([]Member, 30)
	for i := range members {
		members[i] = Member{Key: fmt.Sprint(i), Usage: 1, Main: Process{Start: uint64(i)}}
	}
	if got := rank(members, false); got[0].Key != "29" || !got[0].Minor {
		t.Fatalf("first to go is %+v", got[0])
	}
}

func TestBetterFiguresConfirmOrDismiss(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 60).limits(0, 50))
	b := h.after(3, "a")
	if _, still := b.Confirm(map[string]float64{"a": 40}); still {
		t.Fatal("40 of 50 percent is confirmed")
	}
	if better, still := b.Confirm(map[string]float64{"a": 55}); !still || better.Value != 55 {
		t.Fatalf("55 of 50 percent is %+v, confirmed %t", better, still)
	}
	if same, still := b.Confirm(nil); !still || same.Value != 60 {
		t.Fatalf("without better figures it is %+v, confirmed %t", same, still)
	}
	h.judge.Dismiss(b, h.at)
	h.quiet(11)
	h.after(1, "a")
}

func TestBetterFiguresOfAPoolAccuseAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t, tree("a", 0, 60), tree("b", 0, 30))
	h.pools = []Pool{{Namespace: "shop", MemoryLimit: 40}}
	b := h.after(3, "a")
	other, still := b.Confirm(map[string]float64{"a": 20})
	if !still || other.Key != "b" || other.Value != 50 {
		t.Fatalf("it is %+v, confirmed %t", other, still)
	}
	if b.Members[0].Usage != 60 {
		t.Fatal("the breach before has changed")
	}
	if _, still := b.Confirm(map[string]float64{"a": 5}); still {
		t.Fatal("35 of 40 percent is confirmed")
	}
}
