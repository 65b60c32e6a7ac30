package testenv

import (
	"testing"

	"github.com/procfleet/procfleet/internal/fleetkey"
)

// NewRing returns a key ring with a newly created fleet key.
func NewRing(tb testing.TB) *fleetkey.Ring {
	tb.Helper()
	key, err := fleetkey.NewKey("k1")
	if err != nil {
		tb.Fatal(err)
	}
	ring, err := (&fleetkey.File{Keys: []fleetkey.Key{key}}).Ring()
	if err != nil {
		tb.Fatal(err)
	}
	return ring
}
