package boltcatalog

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func someHosts(t *testing.T, n int) []procfleet.Host {
	t.Helper()
	hs := make([]procfleet.Host, n)
	for i := range hs {
		h, err := procfleet.NewHost(0, fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
		if err != nil {
			t.Fatal(err)
		}
		hs[i] = h
	}
	return hs
}

func defined(name, contact string, hs []procfleet.Host) catalog.Definition {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.Contact = "shop", name, contact
	return catalog.Definition{Spec: spec, Hosts: hs}
}

func processesOf(d catalog.Definition) []catalog.Process {
	var ps []catalog.Process
	for _, h := range d.Hosts {
		ps = append(ps, d.Process(h))
	}
	return ps
}

func TestASpecIsKeptOnceAndNoLongerThanItsRegistrations(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	hs := someHosts(t, 300)
	register := func(replace bool, ds ...catalog.Definition) {
		t.Helper()
		if _, err := s.Register(t.Context(), ds, replace); err != nil {
			t.Fatal(err)
		}
	}
	unregister := func(ps ...catalog.Process) {
		t.Helper()
		if _, err := s.Unregister(t.Context(), ps); err != nil {
			t.Fatal(err)
		}
	}
	specs := func(after string, want int) {
		t.Helper()
		if n := keysIn(t, s, bucketSpecs); n != want {
			t.Errorf("%d specs are kept after %s, want %d", n, after, want)
		}
	}
	a, b := defined("web", "a", hs), defined("web", "b", hs[:150])
	register(false, a)
	register(false, a, b) // all were there: the old spec stays
	register(true, a)
	specs("one was registered", 1)
	register(true, b, defined("web", "c", hs[:1]), b)
	specs("half got another, one for a moment a third", 2)
	unregister(processesOf(b)...)
	specs("what had the second was unregistered", 1)
	register(true, defined("web", "b", hs))
	specs("the first was replaced everywhere", 1)
	unregister(processesOf(a)[1:]...)
	unregister(processesOf(a)[1:]...)
	specs("all but one were unregistered, twice", 1)
	if r, err := s.Registrations(t.Context(), processesOf(a)[:1]); err != nil || r[0] == nil || r[0].Spec.Contact != "b" {
		t.Errorf("the registration that is left: %+v, %v", r, err)
	}
	unregister(processesOf(a)...)
	specs("all were unregistered", 0)
	if n := keysIn(t, s, bucketProcesses); n != 0 {
		t.Errorf("%d processes are kept that nobody knows", n)
	}
}

func TestSpecsOfSimultaneousWritersAreCounted(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	hs := someHosts(t, 10)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 10 {
				d := defined("web", fmt.Sprint((i+n)%3), hs)
				if _, err := s.Register(t.Context(), []catalog.Definition{d}, true); err != nil {
					t.Error(err)
				}
				if _, err := s.Unregister(t.Context(), processesOf(d)[:i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := s.Unregister(t.Context(), processesOf(defined("web", "", hs))); err != nil {
		t.Fatal(err)
	}
	if n := keysIn(t, s, bucketSpecs); n != 0 {
		t.Errorf("%d specs are kept that nothing has", n)
	}
}
