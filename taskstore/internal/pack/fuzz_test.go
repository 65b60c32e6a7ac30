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

// FuzzReadPreviousSpecs reads arbitrary data. Specs that were read become the same specs again.
func FuzzReadPreviousSpecs(f *testing.F) {
	f.Add([]byte(`{"s":[{"namespace":"shop","name":"web"}],"i":[0,-1,0]}`))
	f.Add([]byte(`{"s":[],"i":[1]}`))
	f.Add([]byte(`{"i":[-7]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := ReadPreviousSpecs(data)
		if err != nil {
			return
		}
		packed, err := PreviousSpecs(specs)
		if err != nil {
			return // a raw member of the spec is no JSON
		}
		again, err := ReadPreviousSpecs(packed)
		if err != nil || len(again) != len(specs) {
			t.Fatalf("%d specs became %d: %v", len(specs), len(again), err)
		}
		for i := range specs {
			if (specs[i] == nil) != (again[i] == nil) {
				t.Fatalf("spec %d appeared or was lost", i)
			}
		}
	})
}
