package proc

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

// hundredth is a hundredth of a second, in ticks.
const hundredth = TicksPerSecond / 100

// row is one process of an invented host; its times are in hundredths.
func row(pid, ppid, session int, start, cpu uint64) Stat {
	return Stat{PID: pid, PPID: ppid, Session: session, State: 'S', Start: start * hundredth, UTime: cpu * hundredth, RSSPages: 1}
}

func idOf(pid int, start uint64) Identity {
	return Identity{BootID: "boot", PID: pid, Start: start * hundredth}
}

func nobody(int) bool { return false }

// measured feeds a meter with invented hosts, one second apart, and returns
// what it says of one root.
func measured(meter *UsageMeter, second int, root Identity, others func(int) bool, rows ...Stat) (TreeUsage, bool) {
	table := &Table{boot: "boot", stats: rows}
	u := meter.take(table, Capacity{CPUs: 2, Memory: 100 * int64(os.Getpagesize())}, time.Duration(second)*time.Second, []Identity{root}, others)
	tree, lives := u.Trees[root]
	return tree, lives
}

func TestUsageOfATreeNeverGoesBack(t *testing.T) {
	t.Parallel()
	var m UsageMeter
	root := idOf(10, 100)
	main, worker := row(10, 1, 10, 100, 1000), row(11, 10, 10, 110, 5000)
	tree, _ := measured(&m, 100, root, nobody, main, worker)
	if tree.CPUKnown || tree.CPU != 0 || tree.Age != 99*time.Second || len(tree.Processes) != 2 || tree.MemoryPercent != 2 {
		t.Fatalf("first measurement is %+v", tree)
	}
	main.UTime += 50 * hundredth
	worker.STime += 100 * hundredth
	if tree, _ = measured(&m, 101, root, nobody, main, worker); !tree.CPUKnown || tree.CPU != 75 {
		t.Fatalf("1.5 CPU seconds in a second of two CPUs are %+v, want 75 percent", tree)
	}
	main.UTime += 20 * hundredth // and the worker has ended
	if tree, _ = measured(&m, 102, root, nobody, main); tree.CPU != 10 {
		t.Fatalf("after a member ended it is %+v, want 10 percent", tree)
	}
	young := row(12, 10, 10, 10250, 30) // began half a second ago
	stranger := row(13, 10, 10, 9000, 100_000)
	if tree, _ = measured(&m, 103, root, nobody, main, young, stranger); tree.CPU != 15 {
		t.Fatalf("with a new member and one of unknown past it is %+v, want 15 percent", tree)
	}
	if tree, _ = measured(&m, 103, root, nobody, main, young, stranger); tree.CPUKnown {
		t.Fatalf("no time has passed and CPU is known: %+v", tree)
	}
	if _, lives := measured(&m, 104, root, nobody, row(10, 1, 10, 10300, 0)); lives {
		t.Fatal("a process with another start time is taken for the root")
	}
}

func TestTreesOfAHost(t *testing.T) {
	t.Parallel()
	host := []Stat{
		row(1, 0, 1, 1, 0),
		row(10, 1, 10, 100, 0),         // leads its session
		row(11, 10, 10, 110, 0),        //
		row(12, 11, 12, 120, 0),        // its own session, and a descendant
		row(13, 1, 10, 130, 0),         // lost its parent, still in the session
		row(14, 1, 10, 90, 0),          // older than the root
		row(20, 10, 20, 140, 0),        // another managed process
		row(21, 20, 20, 150, 0),        //
		row(30, 5, 5, 100, 0),          // leads no session
		row(31, 30, 5, 110, 0),         //
		row(32, 5, 5, 120, 0),          // in the session of neither
		row(os.Getpid(), 10, 10, 1, 0), // the agent
	}
	zombie := row(15, 10, 10, 130, 0)
	zombie.State = 'Z'
	table := &Table{boot: "boot", stats: append(host, zombie)}
	managed := []int{10, 20, 30}
	trees := table.trees([]Identity{idOf(10, 100), idOf(20, 140), idOf(30, 100), idOf(40, 1)},
		func(pid int) bool { return slices.Contains(managed, pid) })
	for root, want := range map[Identity][]int{
		idOf(10, 100): {10, 11, 12, 13}, idOf(20, 140): {20, 21}, idOf(30, 100): {30, 31}, idOf(40, 1): nil,
	} {
		var got []int
		for _, st := range trees[root] {
			got = append(got, st.PID)
		}
		if len(got) > 0 && got[0] != root.PID {
			t.Errorf("tree of %s begins with pid %d", root, got[0])
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("tree of %s is %v, want %v", root, got, want)
		}
	}
}

func TestMemoryOfNothingIsNoPercentage(t *testing.T) {
	t.Parallel()
	if got := (Capacity{}).PercentOf(5); got != 0 || math.IsNaN(got) {
		t.Fatalf("got %v", got)
	}
}

func BenchmarkTreesOfALargeHost(b *testing.B) {
	table := &Table{boot: "boot"}
	var roots []Identity
	for pid := 2; pid < 30_000; pid++ {
		table.stats = append(table.stats, row(pid, pid/10, pid-pid%10, uint64(pid), 1))
		if pid%600 == 0 {
			roots = append(roots, idOf(pid, uint64(pid)))
		}
	}
	var m UsageMeter
	for b.Loop() {
		m.take(table, Capacity{CPUs: 1, Memory: 1}, time.Hour, roots, nobody)
	}
}
