package collect

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

type sentHint struct {
	task procfleet.TaskID
	over bool
}

// sentHints remembers hints, and fails like a broker that is unavailable.
type sentHints struct {
	mu   sync.Mutex
	sent []sentHint
}

func (s *sentHints) send(id procfleet.TaskID, over bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, sentHint{id, over})
	return errors.New("away")
}

func (s *sentHints) all() []sentHint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

func newTestHints() (*Hints, *sentHints) {
	sent := &sentHints{}
	return NewHints(sent.send), sent
}

func TestChangesAreHintedAtTenTimesASecondAndAlwaysAfterTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, sent := newTestHints()
		for range 1000 { // one second of changes
			h.recorded("a", taskstore.Recorded{Applied: 1})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * hintEvery)
		during := len(sent.all())
		if during < 9 || during > 11 {
			t.Errorf("%d hints, want about 10", during)
		}
		h.Change("a")
		time.Sleep(2 * hintEvery)
		if got := sent.all(); len(got) != during+1 || got[during] != (sentHint{"a", false}) {
			t.Errorf("after one more change: %v", got[during:])
		}
	})
}

func TestTheEndOfATaskIsPublishedAtOnceAndAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, sent := newTestHints()
		h.Change("a")
		h.recorded("a", taskstore.Recorded{Applied: 1, Completed: true})
		if got := sent.all(); !slices.Equal(got, []sentHint{{"a", true}}) {
			t.Errorf("hints at once: %v", got)
		}
		time.Sleep(2 * hintEvery)
		if got := sent.all(); len(got) != 1 {
			t.Errorf("hints: %v", got)
		}
	})
}

func TestWhatChangedNothingIsNotHintedAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, sent := newTestHints()
		h.recorded("a", taskstore.Recorded{Known: true})
		h.Flush()
		if got := sent.all(); len(got) != 0 {
			t.Errorf("hints: %v", got)
		}
	})
}

func TestTheLastChangesAreHintedAtWhenAWorkerStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, sent := newTestHints()
		h.Change("a")
		h.Flush()
		if got := sent.all(); !slices.Equal(got, []sentHint{{"a", false}}) {
			t.Errorf("hints: %v", got)
		}
	})
}

func BenchmarkHintsOfAShortTask(b *testing.B) {
	h := NewHints(func(procfleet.TaskID, bool) error { return nil })
	b.ReportAllocs()
	for b.Loop() {
		h.Change("GSETASK:20261121053522:123456")
		h.over("GSETASK:20261121053522:123456")
	}
}
