package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Table is one table of a report. Cells are strings and numbers.
type Table struct {
	Title   string   `json:"title"`
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"`
	Notes   []string `json:"notes,omitempty"`
}

func (t *Table) add(cells ...any) { t.Rows = append(t.Rows, cells) }

// Markdown writes the table with aligned columns.
func (t *Table) Markdown(out io.Writer) error {
	lines := [][]string{t.Columns}
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = text(cell)
		}
		lines = append(lines, line)
	}
	width := make([]int, len(t.Columns))
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], len([]rune(cell)), 2)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", t.Title)
	for n, line := range lines {
		for i, cell := range line {
			fmt.Fprintf(&b, "| %*s ", width[i], cell)
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range width {
				b.WriteString("| " + strings.Repeat("-", w-1) + ": ")
			}
			b.WriteString("|\n")
		}
	}
	for _, note := range t.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	b.WriteString("\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// text formats a cell with about three significant digits.
func text(cell any) string {
	switch v := cell.(type) {
	case string:
		return v
	case int:
		return thousands(v)
	case float64:
		switch {
		case v < 10:
			return strconv.FormatFloat(v, 'f', 2, 64)
		case v < 1000:
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return thousands(int(v + 0.5))
	}
	return fmt.Sprint(cell)
}

// thousands formats 12345 as 12,345.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// verdict returns the table cell that shows whether a goal is met.
func verdict(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}

// atMost and noLess return the two table cells of a maximum or minimum goal: its value, and
// whether figure meets the goal.
func atMost(figure, goal float64, unit string) (string, string) {
	return "≤ " + number(goal) + unit, verdict(figure <= goal)
}

func noLess(figure, goal float64, unit string) (string, string) {
	return "≥ " + number(goal) + unit, verdict(figure >= goal)
}

func number(v float64) string {
	if v == float64(int(v)) {
		return thousands(int(v))
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// quantile returns the q-quantile of values; 0.5 is the median. It sorts values in place.
// values must not be empty.
func quantile(values []time.Duration, q float64) time.Duration {
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// medianOf returns the median of column over the samples.
func medianOf[S any](samples []S, column func(*S) time.Duration) time.Duration {
	values := make([]time.Duration, len(samples))
	for i := range samples {
		values[i] = column(&samples[i])
	}
	return quantile(values, 0.5)
}

// meanOf returns the mean of column over the samples.
func meanOf[S any](samples []S, column func(*S) time.Duration) time.Duration {
	var sum time.Duration
	for i := range samples {
		sum += column(&samples[i])
	}
	return sum / time.Duration(len(samples))
}

// processColumns returns the column of each process, its name followed by suffix, and more
// columns.
func processColumns(suffix string, more ...string) (columns []string) {
	for _, name := range processNames() {
		columns = append(columns, name+suffix)
	}
	return append(columns, more...)
}

// processCells returns a cell for each process, and the sum of the cells.
func processCells(figure func(name string) float64) (cells []any, sum float64) {
	for _, name := range processNames() {
		value := figure(name)
		cells, sum = append(cells, value), sum+value
	}
	return cells, sum
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
