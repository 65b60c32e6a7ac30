package fanout

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"
)

// table is what the user sees: milliseconds, medians, and the ratio of the
// path to the sum of the floors.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) *table {
	fmt.Fprintf(out, "%s/%s, %d CPUs, %s; medians in ms\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "hosts\trequest/reply\tpublish\tpull+ack\tscript\tFLOOR\taccept\tPATH\tRATIO\t")
	return &table{w: w}
}

func (t *table) row(hosts int, s sample) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Fprintf(t.w, "%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t\n", hosts,
		ms(s.floor.request), ms(s.floor.publish), ms(s.floor.pull), ms(s.floor.script), ms(s.floor.sum()),
		ms(s.accept), ms(s.path), float64(s.path)/float64(s.floor.sum()))
}

func (t *table) flush() error { return t.w.Flush() }
