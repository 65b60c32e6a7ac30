package boltcatalog

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/recent"
)

var shop = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

func topologyNow(t *testing.T, s *Catalog) *catalog.Topology {
	t.Helper()
	topology, err := s.Topology(t.Context(), shop)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// Each topology contains its version in its names, so that the test detects a mixture of versions.
func TestATopologyIsReadAsOneVersionWhileItChanges(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	hs := someHosts(t, 50)
	next := func(now *catalog.Topology) error {
		name := fmt.Sprint(now.Version + 1)
		modules := []catalog.Module{{Name: name, Hosts: hs[:now.Version%50]}, {Name: "patched"}}
		_, err := s.SetTopology(t.Context(), shop, catalog.Topology{Version: now.Version, Sets: []catalog.Set{{Name: name, Modules: modules}}})
		return err
	}
	var wg sync.WaitGroup
	var last atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range 100 {
				var changed *catalog.VersionError
				if err := next(topologyNow(t, s)); err != nil && !errors.As(err, &changed) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 200 {
				least := last.Load()
				got := topologyNow(t, s)
				if got.Version < least {
					t.Errorf("version %d after %d", got.Version, least)
				}
				if got.Version == 0 {
					continue
				}
				last.Store(got.Version)
				m := got.Sets[0].Modules[0]
				if name := fmt.Sprint(got.Version); got.Sets[0].Name != name || m.Name != name || len(m.Hosts) != int(got.Version-1)%50 {
					t.Errorf("version %d is that of %s, with %d hosts in module %s", got.Version, got.Sets[0].Name, len(m.Hosts), m.Name)
				}
			}
		})
	}
	wg.Wait()
}

func TestPatchesOfOneTopologyAddUp(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	const writers, rounds = 8, 20
	set := catalog.Set{Name: "s"}
	for w := range writers {
		set.Modules = append(set.Modules, catalog.Module{Name: fmt.Sprint(w)})
	}
	if _, err := s.SetTopology(t.Context(), shop, catalog.Topology{Sets: []catalog.Set{set}}); err != nil {
		t.Fatal(err)
	}
	hs := someHosts(t, rounds)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range rounds {
				if _, err := s.SetModuleHosts(t.Context(), shop, "s", fmt.Sprint(w), hs[:n+1]); err != nil {
					t.Error(err)
				}
				if _, err := s.SetModuleHosts(t.Context(), shop, "s", "nowhere", hs); !errors.Is(err, catalog.ErrNoModule) {
					t.Errorf("no such module: %v", err)
				}
			}
		})
	}
	wg.Wait()
	got := topologyNow(t, s)
	if got.Version != 1+writers*rounds {
		t.Errorf("version %d after %d changes", got.Version, 1+writers*rounds)
	}
	for _, m := range got.Sets[0].Modules {
		if !slices.Equal(m.Hosts, hs) {
			t.Errorf("module %s has %v", m.Name, m.Hosts)
		}
	}
}

func TestATopologyIsDecodedOnceAsLongAsItIsUsed(t *testing.T) {
	t.Parallel()
	ahead := new(atomic.Int64)
	s := openAt(t, ahead)
	if _, err := s.SetTopology(t.Context(), shop, catalog.Topology{Sets: []catalog.Set{{Name: "s"}}}); err != nil {
		t.Fatal(err)
	}
	first := topologyNow(t, s)
	ahead.Add(int64(recent.For) / 2)
	if again := topologyNow(t, s); again != first {
		t.Error("the same version was decoded twice")
	}
	purged := func(after int64) (kept bool) {
		t.Helper()
		ahead.Add(after)
		if err := s.db.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.topologies.Kept(shop) != nil
	}
	if !purged(int64(recent.For) / 2) {
		t.Error("it was forgotten too soon after its last use")
	}
	if purged(int64(recent.For) / 2) {
		t.Error("it is kept though nobody used it for long")
	}
	if again := topologyNow(t, s); again == first || again.Version != 1 {
		t.Errorf("after purge: %+v", again)
	}
}
