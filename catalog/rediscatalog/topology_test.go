package rediscatalog_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func business() catalog.Business {
	return catalog.Business{Account: catalog.DefaultAccount, ID: 2}
}

// modules are a topology of one set with modules of one host each.
func modules(t *testing.T, n int) catalog.Topology {
	t.Helper()
	set := catalog.Set{Name: "s1"}
	for i, h := range catalogHosts(t, n) {
		set.Modules = append(set.Modules, catalog.Module{Name: fmt.Sprintf("m%d", i), Hosts: []procfleet.Host{h}})
	}
	return catalog.Topology{Version: -1, Sets: []catalog.Set{set}}
}

func TestModulesThatManyDispatchersChangeKeepEveryChange(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dispatchers := []*stores.Redis{open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()})}
	const n = 30
	_, err := dispatchers[0].SetTopology(t.Context(), business(), modules(t, n))
	mustNot(t, err)
	hosts := catalogHosts(t, 2*n)[n:]
	var writers sync.WaitGroup
	for i, h := range hosts {
		writers.Go(func() {
			if _, err := dispatchers[i%2].SetModuleHosts(t.Context(), business(), "s1", fmt.Sprintf("m%d", i), []procfleet.Host{h}); err != nil {
				t.Errorf("set hosts of module %d: %v", i, err)
			}
		})
	}
	writers.Wait()
	for _, s := range dispatchers {
		got, err := s.Topology(t.Context(), business())
		mustNot(t, err)
		if got.Version != 1+n {
			t.Errorf("version is %d after %d changes", got.Version, n)
		}
		for i, m := range got.Sets[0].Modules {
			if m.Hosts[0] != hosts[i] {
				t.Errorf("module %d has %v, want %v", i, m.Hosts, hosts[i])
			}
		}
	}
}

// After a restore a version does not identify a topology: the store assigns it again.
func TestTopologyThatARestoreTookAwayIsNotRemembered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	_, err := s.SetTopology(t.Context(), business(), modules(t, 1))
	mustNot(t, err)
	backup := server.Backup(t)
	shows := func(version int64, want int) {
		t.Helper()
		got, err := s.Topology(t.Context(), business())
		if err != nil || got.Version != version || len(got.Sets[0].Modules) != want {
			t.Errorf("got version %d with %d modules, %v; want version %d with %d", got.Version, len(got.Sets[0].Modules), err, version, want)
		}
	}
	shows(1, 1)
	_, err = s.SetTopology(t.Context(), business(), modules(t, 2))
	mustNot(t, err)
	shows(2, 2)
	server.Restore(t, backup)
	shows(1, 1)
	_, err = open(t, redisconn.Options{URL: server.URL()}).SetTopology(t.Context(), business(), modules(t, 3))
	mustNot(t, err)
	shows(2, 3)
}

func TestTopologyOfTheLargestSize(t *testing.T) {
	testenv.Long(t, "the largest topology; the contract has one of 20,000 hosts")
	t.Parallel()
	s := openOn(t, redistest.Start(t))
	largest := catalog.Topology{}
	for i := range catalog.MaxPlacements / 10_000 {
		m := catalog.Module{Name: fmt.Sprintf("m%d", i)}
		for j := range 10_000 {
			h, err := procfleet.NewHost(procfleet.CloudArea(i), fmt.Sprintf("10.1.%d.%d", j>>8, j&255))
			mustNot(t, err)
			m.Hosts = append(m.Hosts, h)
		}
		largest.Sets = append(largest.Sets, catalog.Set{Name: fmt.Sprintf("s%d", i), Modules: []catalog.Module{m}})
	}
	_, err := s.SetTopology(t.Context(), business(), largest)
	mustNot(t, err)
	_, err = s.SetModuleHosts(t.Context(), business(), "s7", "m7", nil)
	mustNot(t, err)
	got, err := open(t, redisconn.Options{URL: s.server.URL()}).Topology(t.Context(), business())
	mustNot(t, err)
	if len(got.Sets[7].Modules[0].Hosts) != 0 || len(got.Sets[8].Modules[0].Hosts) != 10_000 {
		t.Errorf("the module that was emptied has %d hosts, the next %d", len(got.Sets[7].Modules[0].Hosts), len(got.Sets[8].Modules[0].Hosts))
	}
	_, err = s.SetTopology(t.Context(), business(), catalog.Topology{Version: 1})
	var changed *catalog.VersionError
	if !errors.As(err, &changed) || changed.Have != 2 {
		t.Errorf("replacing version 1 of 2: %v", err)
	}
}
