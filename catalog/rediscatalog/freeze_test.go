package rediscatalog_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestFreezesDoNotGatherAndTheirKeysEndWithTheLast(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	freeze := func(ttl time.Duration, first byte) time.Time {
		t.Helper()
		var scopes []catalog.Scope
		for n := range byte(100) {
			scopes = append(scopes, catalog.Scope{Host: procfleet.Host{Addr: netip.AddrFrom4([4]byte{10, 0, first, n})}})
		}
		until, err := s.Freeze(t.Context(), scopes, catalog.Freezing{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return until
	}
	freeze(time.Hour, 0)
	until := freeze(time.Second, 1)
	for now := (time.Time{}); !now.After(until); time.Sleep(time.Millisecond) {
		var err error
		if now, err = s.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	freeze(time.Minute, 2)
	if n, err := c.HLen(t.Context(), "pf:{freezes}:all").Result(); err != nil || n != 200 {
		t.Errorf("%d freezes are kept (%v), want 200", n, err)
	}
	for _, key := range redistest.Keys(t, c, "pf:{freezes}:*") {
		ttl, err := c.PTTL(t.Context(), key).Result()
		if err != nil || ttl < 30*time.Minute || ttl > time.Hour+time.Second {
			t.Errorf("key %s ends in %v (%v), the last freeze within an hour", key, ttl, err)
		}
	}
}
