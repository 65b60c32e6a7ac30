package operate

import (
	"testing"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/supervise"
)

func TestRemindersDoNotPileUpBeforeAGoroutineThatIsBusy(t *testing.T) {
	t.Parallel()
	m := newMailbox(func() {})
	m.put(completed{id: "an operation", report: procop.Report{Aliases: []string{"cannot be compared"}}})
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

func TestAMailboxBeginsOneGoroutineForAllThatWaits(t *testing.T) {
	t.Parallel()
	begun := 0
	m := newMailbox(func() { begun++ })
	m.put("before it is open")
	if begun != 0 {
		t.Fatal("a goroutine was begun before the mailbox was opened")
	}
	m.open()
	m.put("while a goroutine runs")
	if n := len(m.take()); begun != 1 || n != 2 {
		t.Fatalf("%d goroutines were begun for %d messages, want 1 for 2", begun, n)
	}
	m.put("while it handles them")
	if n := len(m.take()); begun != 1 || n != 1 {
		t.Fatalf("%d goroutines were begun, and the first got %d messages, want it to get 1", begun, n)
	}
	if n := len(m.take()); n != 0 {
		t.Fatalf("got %d messages of none", n)
	}
	m.put("after it has ended")
	if begun != 2 {
		t.Fatalf("%d goroutines were begun, want another one after the first had ended", begun)
	}
	m.close()
	m.put("after the end")
	if n := len(m.take()); n != 0 {
		t.Fatalf("a closed mailbox handed out %d messages", n)
	}
}
