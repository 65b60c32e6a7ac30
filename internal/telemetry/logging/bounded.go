package logging

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// window is for how long warnings and errors of one message are counted
	// together, of which the first inFull have lines of their own.
	window = 10 * time.Second
	inFull = 100
)

// bounded limits the warnings that others can cause, for example with rejected
// messages: lines beyond inFull in a window are counted, and the count is logged
// before the first line of the next window. Messages are a handful of constants;
// the data is in the fields.
type bounded struct {
	logrus.Formatter

	mu    sync.Mutex
	began time.Time
	seen  map[string]*repeats // by message
}

// repeats are the lines of one message in the window.
type repeats struct {
	level logrus.Level
	lines int
}

// Format implements [logrus.Formatter]. Nothing is written of what is left out.
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

// count notes an entry and reports whether its message has had its lines. At
// the first entry after a window it returns what was left out in that.
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
				Logger: e.Logger, Time: e.Time, Level: r.level, Message: "lines left out that say the same",
				Data: logrus.Fields{"line": message, "lines": r.lines - inFull},
			})
		}
	}
	return sums
}
