package proc

import (
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"
)

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
			tree, lives := measured(&m, second, idOf(root, 1), nobody, rows...)
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
