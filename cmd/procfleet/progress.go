package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
)

// progress shows how a task goes on: a bar that redraws itself on a terminal,
// elsewhere a line whenever something changed, at most one a second.
type progress struct {
	out      io.Writer
	terminal bool
	begun    time.Time
	last     string // what was shown
	lastAt   time.Time
}

const plainInterval = time.Second

func newProgress(out io.Writer) *progress {
	return &progress{out: out, begun: time.Now(), terminal: isTerminal(out)}
}

func (p *progress) show(t apiclient.Task) {
	if p.terminal {
		// \x1b[K clears what a longer line before has left.
		fmt.Fprintf(p.out, "\r%s %s  %.1fs\x1b[K", bar(t), countsText(t), time.Since(p.begun).Seconds())
		return
	}
	text := countsText(t)
	if text == p.last || (time.Since(p.lastAt) < plainInterval && !t.Done()) {
		return
	}
	p.last, p.lastAt = text, time.Now()
	fmt.Fprintln(p.out, text)
}

// end leaves the last bar on its line.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprintln(p.out)
	}
}

func bar(t apiclient.Task) string {
	const width = 30
	full := 0
	if t.Items > 0 {
		full = width * (t.Items - t.Counts.Open()) / t.Items
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
}

// countsText is "finished 7/10: 1 failed, 6 succeeded", failures first.
func countsText(t apiclient.Task) string {
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
	return text
}
