package boltcatalog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
)

// victimRound is set for a victim that writes to the catalog, to the number of earlier victims.
const victimRound = "PROCFLEET_TEST_VICTIM_ROUND"

const catalogWriters = 4

// catalogVictim writes to the catalog until it is killed, and prints writer and number of each
// confirmed step.
func catalogVictim(path, round string) error {
	var first int
	if _, err := fmt.Sscan(round, &first); err != nil {
		return err
	}
	s, err := stores.OpenBolt(path, boltdb.Options{})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, catalogWriters)
	for w := range catalogWriters {
		wg.Go(func() {
			for step := first * 1_000_000; ; step++ {
				if err := catalogStep(s, w, step); err != nil {
					errs <- err
					return
				}
				fmt.Fprintf(os.Stdout, "%d %d\n", w, step)
			}
		})
	}
	wg.Wait()
	return <-errs
}

func catalogHosts(w int) []procfleet.Host {
	hs := make([]procfleet.Host, 40)
	for i := range hs {
		hs[i] = procfleet.Host{Cloud: procfleet.CloudArea(w), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
	}
	return hs
}

func catalogProcesses(hs []procfleet.Host) []catalog.Process {
	var ps []catalog.Process
	for _, h := range hs {
		ps = append(ps, catalog.Process{Host: h, Namespace: "shop", Name: "web"})
	}
	return ps
}

// catalogStep does one step of a writer: it registers its process, reports it,
// groups it and unregisters it from half of the hosts, in turns.
func catalogStep(s *stores.Bolt, w, step int) error {
	ctx, hs := context.Background(), catalogHosts(w)
	switch step % 4 {
	case 0:
		spec := procfleet.DefaultSpec()
		spec.Namespace, spec.Name, spec.Contact = "shop", "web", fmt.Sprint(step)
		_, err := s.Register(ctx, []catalog.Definition{{Spec: spec, Hosts: hs}}, true)
		return err
	case 1:
		var rs []catalog.Report
		for _, h := range hs {
			p := catalog.ReportedProcess{Key: "shop:web", Namespace: "shop", Name: "web", Status: procfleet.ProcessStatus{PID: step}}
			rs = append(rs, catalog.Report{Host: h, Number: int64(step), Processes: []catalog.ReportedProcess{p}})
		}
		return s.Report(ctx, rs)
	case 2:
		return s.SetGroups(ctx, []catalog.HostGroups{{Host: hs[0], Namespace: "shop", Groups: []catalog.Group{{ID: fmt.Sprint(step)}}}})
	default:
		_, err := s.Unregister(ctx, catalogProcesses(hs[20:]))
		return err
	}
}

// stepsOf returns the last step of each kind of a writer whose last step was the given one, at least
// the fourth.
func stepsOf(last int) [4]int {
	var steps [4]int
	for kind := range steps {
		steps[kind] = last - (last-kind)%4
	}
	return steps
}

func TestACatalogSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	rounds := 3
	if testenv.IsLong() {
		rounds = 10
	}
	for round := range rounds {
		lines := testenv.KilledAfter(t, 60+rand.IntN(200), victimFile+"="+path, victimRound+"="+fmt.Sprint(round))
		s := open(t, path, new(atomic.Int64))
		last := map[int]int{}
		for _, line := range lines {
			var w, step int
			if _, err := fmt.Sscan(line, &w, &step); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			last[w] = step
		}
		for w, step := range last {
			if step%1_000_000 < 4 {
				continue // the last step of the previous round is unknown
			}
			// The step after the last confirmed one may be stored.
			got := catalogState(t, s, w)
			if want := []string{expectedState(step), expectedState(step + 1)}; !slices.Contains(want, got) {
				t.Errorf("writer %d had confirmed step %d; the catalog has %s, want %s", w, step, got, want)
			}
		}
		if _, total, err := s.EntryPage(t.Context(), "shop", 0, 1000); err != nil || total < 40*len(last) || total%40 != 0 {
			t.Errorf("%d entries, %v", total, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func expectedState(last int) string {
	steps := stepsOf(last)
	second := fmt.Sprint(steps[0])
	if steps[3] > steps[0] {
		second = ""
	}
	return fmt.Sprintf("registered %d and %q, reported %d, group %d", steps[0], second, steps[1], steps[2])
}

// catalogState returns the state of a writer's process in the catalog, which must be the same on all hosts
// of each half.
func catalogState(t *testing.T, s catalog.Store, w int) string {
	t.Helper()
	hs := catalogHosts(w)
	es, err := s.Entries(t.Context(), catalogProcesses(hs))
	if err != nil {
		t.Fatal(err)
	}
	registered, pids := make([]string, len(es)), make([]int, len(es))
	for i, e := range es {
		if e.Registration != nil {
			registered[i] = e.Registration.Spec.Contact
		}
		if e.Reported != nil {
			pids[i] = e.Reported.Status.PID
		}
	}
	for _, half := range [][]string{registered[:20], registered[20:]} {
		if len(slices.Compact(slices.Clone(half))) != 1 {
			t.Errorf("a call over many hosts is there in part: %q", half)
		}
	}
	if len(slices.Compact(slices.Clone(pids))) != 1 {
		t.Errorf("a call with many reports is there in part: %v", pids)
	}
	gs, err := s.Groups(t.Context(), "shop", hs[:1])
	if err != nil || len(gs[0].Groups) != 1 {
		t.Fatalf("groups: %v, %v", gs, err)
	}
	return fmt.Sprintf("registered %s and %q, reported %d, group %s", registered[0], registered[20], pids[0], gs[0].Groups[0].ID)
}
