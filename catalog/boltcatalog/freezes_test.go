package boltcatalog

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

func TestFreezesThatHaveEndedAreRemoved(t *testing.T) {
	t.Parallel()
	ahead := new(atomic.Int64)
	s := openAt(t, ahead)
	freeze := func(ttl time.Duration, n int) {
		t.Helper()
		var scopes []catalog.Scope
		for _, h := range someHosts(t, n) {
			scopes = append(scopes, catalog.Scope{Host: h, Namespace: ttl.String()})
		}
		if _, err := s.Freeze(t.Context(), scopes, catalog.Freezing{TTL: ttl}); err != nil {
			t.Fatal(err)
		}
	}
	freeze(time.Hour, 2*boltdb.PurgeKeys+1)
	freeze(12*time.Hour, boltdb.PurgeKeys/2)
	left := func(want int) {
		t.Helper()
		if err := s.db.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := keysIn(t, s, bucketFreezes); n != want {
			t.Errorf("%d freezes are kept, want %d", n, want)
		}
	}
	left(2*boltdb.PurgeKeys + 1 + boltdb.PurgeKeys/2)
	ahead.Store(int64(2 * time.Hour))
	left(boltdb.PurgeKeys / 2)
	ahead.Store(int64(13 * time.Hour))
	left(0)
}
