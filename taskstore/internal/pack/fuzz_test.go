package pack

import (
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// FuzzPage reads arbitrary cursors of callers.
func FuzzPage(f *testing.F) {
	f.Add("psf", "", "succeeded", 10)
	f.Add("pppp", "0", "", 2)
	f.Add("pppp", "pending:9", "", 2)
	f.Fuzz(func(t *testing.T, marks, cursor, state string, limit int) {
		items, _, err := Page([]byte(marks), taskstore.ResultQuery{State: procfleet.State(state), Cursor: cursor, Limit: limit})
		if err != nil {
			return
		}
		for _, item := range items {
			if item < 0 || item >= len(marks) {
				t.Fatalf("cursor %q shows item %d of %d", cursor, item, len(marks))
			}
		}
	})
}
