package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/internal/plaintext"
)

// progress shows the counters of a task: on a terminal as a bar, elsewhere as a line per
// change, at most one per second.
type progress struct {
	out      io.Writer
	terminal bool
	begun    time.Time
	open     bool   // the current line has no line feed yet
	last     string // last line written
	lastAt   time.Time
}

const plainInterval = time.Second

func newProgress(out io.Writer) *progress {
	return &progress{
		out: out, begun: time.Now(),
		// A dumb terminal cannot redraw a line.
		terminal: isTerminal(out) && os.Getenv("TERM") != "dumb",
	}
}

// terminalWidth queries the width for every line: users resize windows.
func terminalWidth(out io.Writer) int {
	if file, ok := plaintext.Under(out).(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

func (p *progress) show(t client.Task) {
	if p.terminal {
		// \x1b[K clears the remainder of a longer previous line.
		p.open = true
		fmt.Fprintf(plaintext.Under(p.out), "\r%s\x1b[K", plaintext.Line(fit(t, time.Since(p.begun), terminalWidth(p.out)-1)))
		return
	}
	text := countsText(t)
	if text == p.last || (time.Since(p.lastAt) < plainInterval && !t.Done()) {
		return
	}
	p.last, p.lastAt = text, time.Now()
	fmt.Fprintln(p.out, text)
}

// end writes the line feed after the last bar.
func (p *progress) end() {
	if p.open {
		p.open = false
		fmt.Fprintln(p.out)
	}
}

// fit formats the bar in at most width characters, since a wrapped line cannot be
// redrawn. It first omits the bar and then the time; a truncated text ends in "…",
// so that a truncated number is not mistaken for a complete one.
func fit(t client.Task, elapsed time.Duration, width int) string {
	const longest, shortest = 30, 5
	counts := countsText(t)
	text := fmt.Sprintf("%s  %.1fs", counts, elapsed.Seconds())
	space := min(longest, width-len(text)-len("[] "))
	switch {
	case space >= shortest:
		return bar(t, space) + " " + text
	case len(text) <= width:
		return text
	case len(counts) <= width:
		return counts
	case width < 1:
		return ""
	}
	return counts[:width-1] + "…"
}

func bar(t client.Task, width int) string {
	full := 0
	if t.Items > 0 {
		full = width * (t.Items - t.Counts.Open()) / t.Items
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
}

// countsText returns a text like "finished 7/10: 1 failed, 6 succeeded", failures first.
func countsText(t client.Task) string {
	var parts []string
	for _, s := range procfleet.States() {
		if n := t.Counts[s]; n > 0 && s.Final() {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	text := fmt.Sprintf("%s %d/%d", t.State, t.Items-t.Counts.Open(), t.Items)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if t.Rollout != nil {
		text += "; " + rolloutText(t.Rollout)
	}
	return text
}

// rolloutText returns a text like "stage 1/3, 5 of 20 hosts released, 2 at work, 1 failed (2 tolerated), held: budget".
func rolloutText(r *client.Rollout) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("stage %d/%d, %d of %d hosts released, %d at work", r.Stage, len(r.Stages), r.Released, r.Hosts, r.Active)
	if r.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting for agents", r.Waiting)
	}
	if r.MaxFailures != nil {
		text += fmt.Sprintf(", %d failed (%d tolerated)", r.Failed, *r.MaxFailures)
	}
	switch {
	case r.Hold != nil:
		text += ", held: " + string(r.Hold.Kind)
		if r.Hold.Reason != "" {
			text += " (" + r.Hold.Reason + ")"
		}
	case r.Phase == procfleet.PhaseBaking && r.Stage < len(r.Stages):
		text += ", baking"
	}
	return text
}
