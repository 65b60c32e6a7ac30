package operate

import (
	"testing"

	"github.com/procfleet/procfleet/agent/supervise"
)

func TestRemindersDoNotPileUpBeforeAGoroutineThatIsBusy(t *testing.T) {
	t.Parallel()
	m := newMailbox()
	m.put(ended{id: "an operation", aliases: []string{"cannot be compared"}})
	for range 1000 {
		m.remind(supervise.Swept{})
		m.remind(freezesChanged{})
	}
	if n := len(m.take()); n != 3 {
		t.Fatalf("%d messages wait, want 3", n)
	}
	m.remind(supervise.Swept{})
	if n := len(m.take()); n != 1 {
		t.Fatalf("%d messages wait, want the new reminder", n)
	}
}
