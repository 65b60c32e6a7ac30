package catalogtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func entryChecks() []Check {
	return []Check{
		{Name: "entries are answered in order", Fn: entriesInOrder},
		{Name: "entries join what is registered and what is reported", Fn: entriesJoin},
	}
}

func pageChecks() []Check {
	return []Check{
		{Name: "entry pages are in order of name and host", Fn: pagesInOrder, Heavy: true},
		{Name: "entry pages begin anywhere", Fn: pagesAnywhere},
		{Name: "the order of entries does not depend on reports", Fn: orderWithoutReports},
		{Name: "1,500 entries are paged while reports come in", Fn: pagesUnderReports, Heavy: true},
	}
}

func entriesInOrder(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(7, 1)
	registerOn(ctx, t, s, false, "shop", "web", "w", a, b)
	sendReports(ctx, t, s, report(b, 1, running("shop", "web", 1), running("shop", "db", 2)))
	got := entries(ctx, t, s,
		process(b, "shop", "web"), process(a, "shop", "db"), process(b, "shop", "db"), process(a, "shop", "web"), process(b, "mall", "web"), process(b, "shop", "web"))
	equal(t, "entries", stands(got), []string{
		"7:10.0.0.1 shop web: registered w, reported 1", "0:10.0.0.1 shop db: unknown", "7:10.0.0.1 shop db: reported 2",
		"0:10.0.0.1 shop web: registered w", "7:10.0.0.1 mall web: unknown", "7:10.0.0.1 shop web: registered w, reported 1",
	})
	equal(t, "entry of an unknown process", got[1], catalog.Entry{Process: process(a, "shop", "db")})
}

func entriesJoin(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	p := process(h, "shop", "web")
	is := func(known string) {
		t.Helper()
		if known == "" {
			shown(ctx, t, s, "shop")
			equal(t, "entry", entries(ctx, t, s, p)[0], catalog.Entry{Process: p})
			return
		}
		shown(ctx, t, s, "shop", "0:10.0.0.1 shop web: "+known)
	}
	is("")
	registerOn(ctx, t, s, false, "shop", "web", "a", h)
	is("registered a")
	sendReports(ctx, t, s, report(h, 1, running("shop", "web", 1)))
	is("registered a, reported 1")
	registerOn(ctx, t, s, true, "shop", "web", "b", h)
	is("registered b, reported 1")
	unregister(ctx, t, s, p)
	is("reported 1")
	sendReports(ctx, t, s, report(h, 2, running("shop", "web", 2)))
	is("reported 2")
	equal(t, "existed", registerOn(ctx, t, s, false, "shop", "web", "c", h), []bool{false})
	is("registered c, reported 2")
	sendReports(ctx, t, s, report(h, 3))
	is("registered c")
	unregister(ctx, t, s, p)
	is("")
	sendReports(ctx, t, s, report(h, 4, running("shop", "web", 4)))
	is("reported 4")
	sendReports(ctx, t, s, report(h, 5))
	is("")
}

// many creates entries of a namespace: a third is only registered, a third only
// reported, and a third both. It returns them in order.
func many(ctx context.Context, t T, s Subject, namespace string, names []string, hs []procfleet.Host) []catalog.Process {
	t.Helper()
	names = slices.Clone(names)
	slices.Sort(names)
	var ps []catalog.Process
	var ds []catalog.Definition
	reported := map[procfleet.Host][]catalog.ReportedProcess{}
	for _, name := range names {
		for _, h := range hs {
			if len(ps)%3 != 1 {
				ds = append(ds, catalog.Definition{Spec: marked(namespace, name, "w"), Hosts: []procfleet.Host{h}})
			}
			if len(ps)%3 != 0 {
				reported[h] = append(reported[h], running(namespace, name, 1))
			}
			ps = append(ps, process(h, namespace, name))
		}
	}
	slices.Reverse(ds)
	register(ctx, t, s, false, ds...)
	for h, all := range reported {
		sendReports(ctx, t, s, report(h, 1, all...))
	}
	return ps
}

func pagesInOrder(ctx context.Context, t T, s Subject) {
	var names []string
	for _, n := range oddNames() {
		if !slices.Contains(names, n[1]) {
			names = append(names, n[1])
		}
	}
	want := many(ctx, t, s, "shop", names, wideHosts(t))
	many(ctx, t, s, "shop:a", names[:5], hosts(2)) // must not appear in the other namespace
	for _, limit := range []int{7, 100, 1000} {
		var got []catalog.Process
		for _, e := range entryWalk(ctx, t, s, "shop", limit) {
			got = append(got, e.Process)
		}
		equal(t, fmt.Sprintf("entries, %d at a time", limit), got, want)
	}
}

func pagesAnywhere(ctx context.Context, t T, s Subject) {
	want := many(ctx, t, s, "shop", []string{"web", "db", "Cache", "web2"}, wideHosts(t))
	n := len(want)
	for _, c := range [][2]int{{0, 1}, {1, 1}, {5, 10}, {n - 1, 1}, {n - 1, 1000}, {n, 10}, {n + 1, 10}, {1_000_000_000, 1000}, {0, n}} {
		page, total := entryPage(ctx, t, s, "shop", c[0], c[1])
		equal(t, "number of entries", total, n)
		for i, e := range page {
			equal(t, fmt.Sprintf("entry %d", c[0]+i), e.Process, want[c[0]+i])
		}
	}
	page, total := entryPage(ctx, t, s, "nobody's", 0, 10)
	equal(t, "page of nothing", []int{len(page), total}, []int{0, 0})
}

func orderWithoutReports(ctx context.Context, t T, s Subject) {
	all := hosts(20)
	slices.SortFunc(all, func(a, b procfleet.Host) int { return strings.Compare(a.Addr.String(), b.Addr.String()) })
	want := processes(all, "shop", "web")
	sendReports(ctx, t, s, report(all[19], 1, running("shop", "web", 1)), report(all[0], 1, running("shop", "web", 1)))
	registerOn(ctx, t, s, false, "shop", "web", "w", all...)
	for i := range 4 {
		var got []catalog.Process
		for _, e := range entryWalk(ctx, t, s, "shop", 6) {
			got = append(got, e.Process)
		}
		equal(t, "entries", got, want)
		sendReports(ctx, t, s, report(all[19-i], 2, running("shop", "web", 2)), report(all[3], 2+i))
		unregister(ctx, t, s, want[19-i])
	}
}

func pagesUnderReports(ctx context.Context, t T, s Subject) {
	var names []string
	for i := range 15 {
		names = append(names, fmt.Sprint("p", i))
	}
	hs := hosts(100)
	slices.SortFunc(hs, func(a, b procfleet.Host) int { return strings.Compare(a.Addr.String(), b.Addr.String()) })
	want := many(ctx, t, s, "shop", names, hs)
	was := map[catalog.Process]bool{}
	for _, e := range entryWalk(ctx, t, s, "shop", 1000) {
		was[e.Process] = e.Reported != nil
	}
	var reporting sync.WaitGroup
	over, stop := context.WithCancel(ctx)
	for k := range 4 {
		reporting.Go(func() {
			for n := 2; over.Err() == nil; n++ {
				var rs []catalog.Report
				for i := k; i < len(hs); i += 4 {
					r := report(hs[i], n)
					for _, name := range names {
						if was[process(hs[i], "shop", name)] {
							r.Processes = append(r.Processes, running("shop", name, n))
						}
					}
					rs = append(rs, r)
				}
				if err := s.Report(ctx, rs); err != nil {
					t.Errorf("report: %v", err)
					return
				}
			}
		})
	}
	defer reporting.Wait()
	defer stop()
	for range s.rounds(2, 5) {
		all := entryWalk(ctx, t, s, "shop", 500)
		for i, e := range all {
			if i >= len(want) || e.Process != want[i] || (e.Reported != nil) != was[e.Process] {
				t.Fatalf("entry %d of %d is %s", i, len(all), stand(e))
			}
		}
		equal(t, "number of entries", len(all), len(want))
	}
}
