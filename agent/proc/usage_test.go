package proc

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
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

func unclaimed(int) bool { return false }

// measured passes a synthetic process table to the meter, as read at the given second, and
// returns the meter's usage of the tree of root.
func measured(meter *UsageMeter, second int, root Identity, others func(int) bool, rows ...Stat) (TreeUsage, bool) {
	table := &Table{boot: "boot", stats: rows}
	u := meter.compute(table, Capacity{CPUs: 2, Memory: 100 * int64(os.Getpagesize())}, time.Duration(second)*time.Second, []Identity{root}, others)
	tree, lives := u.Trees[root]
	return tree, lives
}

func TestUsageOfATreeNeverGoesBack(t *testing.T) {
	t.Parallel()
	var m UsageMeter
	root := idOf(10, 100)
	main, worker := row(10, 1, 10, 100, 1000), row(11, 10, 10, 110, 5000)
	tree, _ := measured(&m, 100, root, unclaimed, main, worker)
	if tree.CPUKnown || tree.CPU != 0 || tree.Age != 99*time.Second || len(tree.Processes) != 2 || tree.MemoryPercent != 2 {
		t.Fatalf("first measurement is %+v", tree)
	}
	main.UTime += 50 * hundredth
	worker.STime += 100 * hundredth
	if tree, _ = measured(&m, 101, root, unclaimed, main, worker); !tree.CPUKnown || tree.CPU != 75 {
		t.Fatalf("1.5 CPU seconds in a second of two CPUs are %+v, want 75 percent", tree)
	}
	main.UTime += 20 * hundredth // and the worker has ended
	if tree, _ = measured(&m, 102, root, unclaimed, main); tree.CPU != 10 {
		t.Fatalf("after a member ended it is %+v, want 10 percent", tree)
	}
	young := row(12, 10, 10, 10250, 30) // began half a second ago
	stranger := row(13, 10, 10, 9000, 100_000)
	if tree, _ = measured(&m, 103, root, unclaimed, main, young, stranger); tree.CPU != 15 {
		t.Fatalf("with a new member and one of unknown past it is %+v, want 15 percent", tree)
	}
	if tree, _ = measured(&m, 103, root, unclaimed, main, young, stranger); tree.CPUKnown {
		t.Fatalf("no time has passed and CPU is known: %+v", tree)
	}
	if _, lives := measured(&m, 104, root, unclaimed, row(10, 1, 10, 10300, 0)); lives {
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
		m.compute(table, Capacity{CPUs: 1, Memory: 1}, time.Hour, roots, unclaimed)
	}
}

// A meter may miss what short-lived processes used, and must never make up
// anything.
func TestMeterNeverMakesUpCPUTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m UsageMeter
		const root = 1 << 22 // no real pid is greater; the meter leaves out its own process
		rows := []Stat{row(root, 1, root, 1, 500)}
		pid, second := root, 100
		for range rapid.IntRange(2, 30).Draw(t, "measurements") {
			second += rapid.IntRange(1, 20).Draw(t, "pause")
			var used uint64 // in this pause, by whom there is at its end or not
			kept := rows[:1:1]
			for i, st := range rows {
				n := rapid.Uint64Range(0, 300).Draw(t, "hundredths")
				st.UTime += n * hundredth
				used += n
				if i == 0 {
					kept[0] = st
				} else if rapid.IntRange(0, 3).Draw(t, "lives") > 0 {
					kept = append(kept, st)
				}
			}
			for range rapid.IntRange(0, 3).Draw(t, "born") {
				pid++
				parent := rapid.SampledFrom(kept).Draw(t, "parent").PID
				n := rapid.Uint64Range(0, 300).Draw(t, "hundredths")
				born := row(pid, parent, root, uint64(second*100-1), n)
				if rapid.IntRange(0, 4).Draw(t, "stranger") == 0 { // it ran elsewhere before
					born.Start, born.UTime = 2*hundredth, 1_000_000*hundredth
					n = 0
				}
				used += n
				kept = append(kept, born)
			}
			rows = kept
			last := m.at
			tree, lives := measured(&m, second, idOf(root, 1), unclaimed, rows...)
			if !lives || tree.CPU < 0 || len(tree.Processes) != len(rows) {
				t.Fatalf("tree is %+v of %d processes", tree, len(rows))
			}
			if !tree.CPUKnown {
				continue
			}
			most := float64(used) / 100 / (time.Duration(second)*time.Second - last).Seconds() / 2 * 100
			if tree.CPU > most*1.000001 {
				t.Fatalf("%v percent were measured and %v used", tree.CPU, most)
			}
			if tree.RSS != int64(len(rows)*os.Getpagesize()) {
				t.Fatalf("memory is %d bytes", tree.RSS)
			}
		}
	})
}
