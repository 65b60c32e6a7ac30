package catalogtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func identityChecks() []Check {
	return []Check{
		{Name: "processes are identified by host, namespace and name", Fn: identifiedByAll, Heavy: true},
		{Name: "what is not a process is refused", Fn: notAProcess},
		{Name: "what is not a process is not found", Fn: notFound},
	}
}

// oddNames returns namespaces and names that collide if a store concatenates them into
// a key without care.
func oddNames() [][2]string {
	long := strings.Repeat("x", procfleet.MaxKey)
	return [][2]string{
		{"a", "b"},
		{"A", "b"},
		{"b", "a"},
		{"ab", "ab"},
		{"aa", "b"},
		{"a", "ab"},
		{"a", "b:c"},
		{"a:b", "c"},
		{"a:b:c", ":"},
		{":", "a:b:c"},
		{"a", ":b"},
		{"a:", "b"},
		{"a", "b/c"},
		{"a/b", "c"},
		{"/", "/"},
		{"a", "b\\c"},
		{"a\\b", "c"},
		{"a", "b c"},
		{"a b", "c"},
		{" ", " "},
		{"a ", "b"},
		{"a", " b"},
		{"a", "b "},
		{"a\tb", "c\n"},
		{"a", "b\tc\n"},
		{"{a}", "b"},
		{"a", "{b}"},
		{"{a", "b}"},
		{"}{", "{}"},
		{"{}", "}{"},
		{"*", "?"},
		{"[a]", "b*"},
		{"a", "%62"},
		{"a", "b\x01"},
		{"a\x01b", "c"},
		{"a", "\x7f"},
		{"a", "b\x01c"},
		{"业务", "进程"},
		{"业务进", "程"},
		{"é", "é"},
		{"\U0001F600", "\u2028"},
		{"a", "\u00ff"},
		{"a", "\U0010ffff"},
		{`"a"`, `'b'`},
		{"null", "0"},
		{"0", "null"},
		{"a", "b;c"},
		{"a", "-inf"},
		{"a", "+inf"},
		{"a", "[b"},
		{"a", "(b"},
		{long, "b"},
		{"b", long},
		{long, long},
		{long, long[1:] + "y"},
		{"a", long[1:]},
	}
}

func identifiedByAll(ctx context.Context, t T, s Subject) {
	names := oddNames()
	hs := wideHosts(t)
	var ps []catalog.Process
	var want []string
	var ds []catalog.Definition
	perHost := map[procfleet.Host][]catalog.ReportedProcess{}
	perNamespace := map[string]int{}
	for i, n := range names {
		for j, h := range hs {
			mark := fmt.Sprint(i, ".", j)
			ds = append(ds, catalog.Definition{Spec: marked(n[0], n[1], mark), Hosts: []procfleet.Host{h}})
			ps, want = append(ps, process(h, n[0], n[1])), append(want, mark)
			perHost[h] = append(perHost[h], running(n[0], n[1], i+1))
		}
		perNamespace[n[0]] += len(hs)
	}
	register(ctx, t, s, false, ds...)
	equal(t, "specs", marks(ctx, t, s, ps...), want)
	for _, h := range hs {
		sendReports(ctx, t, s, report(h, 1, perHost[h]...))
	}
	for i, e := range entries(ctx, t, s, ps...) {
		if e.Process != ps[i] || e.Registration == nil || e.Registration.Spec.Contact != want[i] || e.Reported == nil || e.Reported.Status.PID != i/len(hs)+1 {
			t.Errorf("entry of %q is %q", ps[i], stand(e))
		}
	}
	for namespace, n := range perNamespace {
		equal(t, "entries of "+namespace, len(entryWalk(ctx, t, s, namespace, 100)), n)
	}
	for i, n := range names {
		equal(t, "hosts of "+n[0]+" "+n[1], hostWalk(ctx, t, s, n[0], n[1], 5), hs)
		unregister(ctx, t, s, processes(hs[:1], n[0], n[1])...)
		equal(t, "hosts of "+n[0]+" "+n[1], hostWalk(ctx, t, s, n[0], n[1], 100), hs[1:])
		want[i*len(hs)] = ""
	}
	equal(t, "specs", marks(ctx, t, s, ps...), want)
}

// badNames returns texts that are valid neither as a namespace nor as a name.
func badNames() []string {
	return []string{"", "a\x00b", "\x00", "a\xff", strings.Repeat("x", procfleet.MaxKey+1)}
}

// badProcesses returns invalid processes, each of which differs from a valid process on
// h in one part.
func badProcesses(h procfleet.Host) []catalog.Process {
	ps := []catalog.Process{process(procfleet.Host{}, "shop", "web")}
	for _, bad := range badNames() {
		ps = append(ps, process(h, bad, "web"), process(h, "shop", bad))
	}
	return ps
}

func notAProcess(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	good := catalog.Definition{Spec: marked("shop", "web", "w"), Hosts: []procfleet.Host{a, b}}
	for _, p := range badProcesses(a) {
		bad := catalog.Definition{Spec: marked(p.Namespace, p.Name, "bad"), Hosts: []procfleet.Host{b, p.Host}}
		if _, err := s.Register(ctx, []catalog.Definition{good, bad}, true); err == nil {
			t.Errorf("%q was registered", p)
		}
		equal(t, "registrations after one was refused", marks(ctx, t, s, processes(good.Hosts, "shop", "web")...), []string{"", ""})
	}
	for _, p := range badProcesses(a) {
		g := catalog.HostGroups{Host: p.Host, Namespace: p.Namespace, Groups: []catalog.Group{{ID: "g"}}}
		if catalog.ValidName(p.Namespace) && !p.Host.IsZero() {
			continue // groups have only a namespace, no name
		}
		if err := s.SetGroups(ctx, []catalog.HostGroups{{Host: b, Namespace: "shop", Groups: g.Groups}, g}); err == nil {
			t.Errorf("groups of %q were stored", p)
		}
	}
	equal(t, "groups after some were refused", groupIDs(ctx, t, s, "shop", a, b), [][]string{nil, nil})
}

func notFound(ctx context.Context, t T, s Subject) {
	a := host(0, 1)
	registerOn(ctx, t, s, false, "shop", "web", "w", a)
	ps := badProcesses(a)
	for _, e := range entries(ctx, t, s, ps...) {
		if e.Registration != nil || e.Reported != nil {
			t.Errorf("entry %q", stand(e))
		}
	}
	for i, r := range registrations(ctx, t, s, ps...) {
		if r != nil {
			t.Errorf("%q is registered", ps[i])
		}
	}
	for i, existed := range unregister(ctx, t, s, ps...) {
		if existed {
			t.Errorf("%q was registered", ps[i])
		}
	}
	for _, bad := range badNames() {
		if page, total := entryPage(ctx, t, s, bad, 0, 10); len(page) != 0 || total != 0 {
			t.Errorf("%q has %d entries", bad, total)
		}
		equal(t, "hosts", hostWalk(ctx, t, s, bad, "web", 10), []procfleet.Host{})
		equal(t, "hosts", hostWalk(ctx, t, s, "shop", bad, 10), []procfleet.Host{})
		equal(t, "groups", groupIDs(ctx, t, s, bad, a), [][]string{nil})
	}
	equal(t, "groups of no host", groupIDs(ctx, t, s, "shop", procfleet.Host{}), [][]string{nil})
	equal(t, "report of no host", reported(ctx, t, s, procfleet.Host{}), []catalog.Report{{}})
	equal(t, "what is registered", marks(ctx, t, s, process(a, "shop", "web")), []string{"w"})
}
