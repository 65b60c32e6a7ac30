package redistest_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func client(t *testing.T, s *redistest.Server) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestWhatWasConfirmedSurvivesAKill(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if err := client(t, s).Set(t.Context(), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)
	if err := client(t, s).Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped server answers")
	}
	s.Restart(t)
	if v, err := client(t, s).Get(t.Context(), "key").Result(); err != nil || v != "value" {
		t.Errorf("%q, %v", v, err)
	}
}

func TestClusterServesEverySlot(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, node := range redistest.StartCluster(t, 3) {
		addrs = append(addrs, node.Addr)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = c.Close() })
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := c.Set(t.Context(), key, key, 0).Err(); err != nil {
			t.Errorf("set %s: %v", key, err)
		}
	}
}
