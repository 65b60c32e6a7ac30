package rediscatalog_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// TestSpecsAreCountedRightAfterManyRegisterTheSameProcesses reads the keys: if a spec were removed while
// a registration refers to it, the registration would be unreadable. If a spec without a registration
// remained, it would stay forever.
func TestSpecsAreCountedRightAfterManyRegisterTheSameProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	hosts := catalogHosts(t, 40)
	var together sync.WaitGroup
	for range 8 {
		together.Go(func() {
			for range 60 {
				from := rand.IntN(len(hosts))
				some := hosts[from : from+rand.IntN(len(hosts)-from)]
				now, err := s.Now(t.Context())
				ds := append(definition(strconv.Itoa(rand.IntN(3)), some...), definition(strconv.Itoa(rand.IntN(3)), some...)...)
				if err != nil {
					t.Error(err)
					return
				}
				switch rand.IntN(4) {
				case 0:
					_, err = s.Unregister(t.Context(), onHosts(some, "web"))
				case 1:
					ds[rand.IntN(2)].Asked = now
					fallthrough
				default:
					_, err = s.Register(t.Context(), ds, rand.IntN(3) > 0)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	together.Wait()
	read := func(key string) map[string]string {
		all, err := c.HGetAll(t.Context(), s.NamespaceKey(shop)+key).Result()
		mustNot(t, err)
		return all
	}
	want := map[string]int{}
	registrations := read("registrations")
	for _, value := range registrations {
		want[value[:16]]++
	}
	specs, uses := read("specs"), read("uses")
	if len(specs) != len(want) || len(uses) != len(want) {
		t.Errorf("%d specs and %d counts for %d that are registered", len(specs), len(uses), len(want))
	}
	for id, n := range want {
		if uses[id] != strconv.Itoa(n) || specs[id] == "" {
			t.Errorf("spec %x is registered %d times, but counted %q times; it has %d bytes", id, n, uses[id], len(specs[id]))
		}
	}
	if got := shown(t, s); len(got) != len(registrations) {
		t.Errorf("pages show %d of %d registrations", len(got), len(registrations))
	}
	_, err := s.Unregister(t.Context(), onHosts(hosts, "web"))
	mustNot(t, err)
	nothingLeft(t, c)
}
