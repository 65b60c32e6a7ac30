package logging

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// window is the period in which warnings and errors with the same message are
	// counted together; only the first inFull are written.
	window = 10 * time.Second
	inFull = 100
)

// bounded limits warnings and errors that other hosts or callers can trigger, for
// example with rejected messages. It counts the lines beyond inFull per window, and
// logs the count before the first line of the next window. Messages are constants,
// so their number is small; the data is in the fields.
type bounded struct {
	logrus.Formatter

	mu    sync.Mutex
	began time.Time
	seen  map[string]*repeats // counts by message
}

// repeats counts the lines of one message in the current window.
type repeats struct {
	level logrus.Level
	lines int
}

// Format implements [logrus.Formatter]. For a suppressed entry it returns no line.
func (b *bounded) Format(e *logrus.Entry) ([]byte, error) {
	sums, full := b.count(e)
	var text []byte
	for _, sum := range sums {
		line, err := b.Formatter.Format(sum)
		if err != nil {
			return nil, err
		}
		text = append(text, line...)
	}
	if full {
		return text, nil
	}
	line, err := b.Formatter.Format(e)
	return append(text, line...), err
}

// count counts an entry and reports whether its message has reached inFull. At the
// first entry of a new window it also returns summaries of the last window.
func (b *bounded) count(e *logrus.Entry) (sums []*logrus.Entry, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if past := e.Time.Sub(b.began); past < 0 || past >= window {
		sums = b.leftOut(e)
		b.began, b.seen = e.Time, make(map[string]*repeats)
	}
	if e.Level > logrus.WarnLevel { //nolint:forbidigo // a level, nothing is logged
		return sums, false
	}
	r := b.seen[e.Message]
	if r == nil {
		r = &repeats{level: e.Level}
		b.seen[e.Message] = r
	}
	r.lines++
	return sums, r.lines > inFull
}

func (b *bounded) leftOut(e *logrus.Entry) (sums []*logrus.Entry) {
	for _, message := range slices.Sorted(maps.Keys(b.seen)) {
		if r := b.seen[message]; r.lines > inFull {
			sums = append(sums, &logrus.Entry{
				Logger: e.Logger, Time: e.Time, Level: r.level, Message: "repeated lines suppressed",
				Data: logrus.Fields{"line": message, "lines": r.lines - inFull},
			})
		}
	}
	return sums
}
