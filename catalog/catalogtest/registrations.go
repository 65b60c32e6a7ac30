package catalogtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func registrationChecks() []Check {
	return []Check{
		{Name: "a registration is kept whole", Fn: registrationWhole},
		{Name: "registrations are answered in order", Fn: registrationsInOrder},
		{Name: "without replace a registration stays", Fn: registrationStays},
		{Name: "with replace the new spec takes the old one's place", Fn: registrationReplaced},
		{Name: "a late registration replaces only older requests", Fn: lateReplaces},
		{Name: "repeats within one call come one after the other", Fn: repeatsWithinCall},
		{Name: "unregister says what was there", Fn: unregisterSays},
		{Name: "what was unregistered is new again", Fn: newAgain},
		{Name: "the registrations of a request end, and no others", Fn: registrationsEnd},
		{Name: "what is given and returned is not shared", Fn: notShared},
		{Name: "registered hosts are walked in order, each once", Fn: hostsWalked},
		{Name: "a walk goes on after a host that is unregistered", Fn: walkAfterAbsent},
		{Name: "one call registers thousands of hosts", Fn: manyHosts, Heavy: true},
		{Name: "one of many registers first", Fn: oneRegistersFirst, Heavy: true},
		{Name: "simultaneous writers do not disturb each other", Fn: writersTogether, Heavy: true},
	}
}

func registrationWhole(ctx context.Context, t T, s Subject) {
	h := host(3, 1)
	before, err := s.Now(ctx)
	must(t, err, "now")
	equal(t, "existed", register(ctx, t, s, false, catalog.Definition{Spec: wholeSpec(), Hosts: []procfleet.Host{h}}), [][]bool{{false}})
	after, err := s.Now(ctx)
	must(t, err, "now")
	r := registrations(ctx, t, s, process(h, "shop", "web"))[0]
	if r == nil {
		t.Fatalf("what was registered is not there")
	}
	if r.RegisteredAt.Before(before) || r.RegisteredAt.After(after) {
		t.Errorf("registered at %v, which is not from %v to %v", r.RegisteredAt, before, after)
	}
	equal(t, "time zone", r.RegisteredAt, r.RegisteredAt.UTC())
	want := &catalog.Registration{Process: process(h, "shop", "web"), Spec: wholeSpec(), RegisteredAt: r.RegisteredAt}
	equal(t, "registration", r, want)
	equal(t, "registration of an entry", entries(ctx, t, s, r.Process)[0], catalog.Entry{Process: r.Process, Registration: want})
}

func registrationsInOrder(ctx context.Context, t T, s Subject) {
	a, b, c := host(0, 1), host(5, 1), host(0, 2)
	registerOn(ctx, t, s, false, "shop", "web", "wa", a)
	registerOn(ctx, t, s, false, "shop", "db", "db", b)
	registerOn(ctx, t, s, false, "shop", "web", "wc", c)
	got := marks(ctx, t, s,
		process(c, "shop", "web"), process(b, "shop", "web"), process(a, "shop", "web"), process(b, "shop", "db"), process(a, "shop", "web"))
	equal(t, "registrations", got, []string{"wc", "", "wa", "db", "wa"})
}

func registrationStays(ctx context.Context, t T, s Subject) {
	hs := hosts(3)
	ps := processes(hs, "shop", "web")
	registerOn(ctx, t, s, false, "shop", "web", "first", hs[1])
	before := registrations(ctx, t, s, ps...)[1]
	equal(t, "existed", registerOn(ctx, t, s, false, "shop", "web", "second", hs...), []bool{false, true, false})
	equal(t, "specs", marks(ctx, t, s, ps...), []string{"second", "first", "second"})
	equal(t, "registration that was there", registrations(ctx, t, s, ps...)[1], before)
}

func registrationReplaced(ctx context.Context, t T, s Subject) {
	hs := hosts(3)
	ps := processes(hs, "shop", "web")
	equal(t, "existed", registerOn(ctx, t, s, true, "shop", "web", "first", hs[1]), []bool{false})
	first := registrations(ctx, t, s, ps...)[1]
	pass(ctx, t, s)
	equal(t, "existed", registerOn(ctx, t, s, true, "shop", "web", "second", hs...), []bool{false, true, false})
	equal(t, "specs", marks(ctx, t, s, ps...), []string{"second", "second", "second"})
	rs := registrations(ctx, t, s, ps...)
	equal(t, "moment of the first registration", rs[1].RegisteredAt, first.RegisteredAt)
	if !rs[0].RegisteredAt.After(first.RegisteredAt) {
		t.Errorf("registered at %v, after what was registered at %v", rs[0].RegisteredAt, first.RegisteredAt)
	}
	// Register a spec again that was replaced on all hosts.
	registerOn(ctx, t, s, true, "shop", "web", "third", hs...)
	registerOn(ctx, t, s, true, "shop", "web", "second", hs[2])
	equal(t, "specs", marks(ctx, t, s, ps...), []string{"third", "third", "second"})
}

func lateReplaces(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	ps := processes([]procfleet.Host{a, b}, "shop", "web")
	pass(ctx, t, s)
	begin, err := s.Now(ctx)
	must(t, err, "now")
	registerOn(ctx, t, s, true, "shop", "web", "old", a)
	pass(ctx, t, s)
	asked, err := s.Now(ctx)
	must(t, err, "now")
	pass(ctx, t, s)
	late := func(mark string, at time.Time, on ...procfleet.Host) catalog.Definition {
		return catalog.Definition{Spec: marked("shop", "web", mark), Hosts: on, Asked: at}
	}
	for _, step := range []struct {
		what    string
		replace bool
		ds      []catalog.Definition
		want    []string
	}{
		{"without replace", false, []catalog.Definition{late("kept", asked, a)}, []string{"old", ""}},
		{"older than what is there", true, []catalog.Definition{late("older", begin.Add(-time.Second), a)}, []string{"old", ""}},
		{"newer, and the first time", true, []catalog.Definition{late("late", asked, a, b)}, []string{"late", "late"}},
		{"as old", true, []catalog.Definition{late("as old", asked, a, b)}, []string{"late", "late"}},
		{"of two, as old, in one call", true, []catalog.Definition{
			late("first", asked.Add(time.Microsecond), a), late("second", asked.Add(time.Microsecond), a),
		}, []string{"first", "late"}},
		{"older than what came late", true, []catalog.Definition{late("between", asked.Add(-time.Microsecond), b)}, []string{"first", "late"}},
		{"asked for now", true, []catalog.Definition{late("now", time.Time{}, a, b)}, []string{"now", "now"}},
		{"asked for before that", true, []catalog.Definition{late("before", asked.Add(2*time.Microsecond), a, b)}, []string{"now", "now"}},
	} {
		pass(ctx, t, s)
		register(ctx, t, s, step.replace, step.ds...)
		equal(t, "specs after one that is "+step.what, marks(ctx, t, s, ps...), step.want)
	}
	// The same spec, requested again, counts as newer.
	again, err := s.Now(ctx)
	must(t, err, "now")
	pass(ctx, t, s)
	registerOn(ctx, t, s, true, "shop", "web", "now", a)
	register(ctx, t, s, true, late("missed", again, a))
	equal(t, "specs after the same was asked for again", marks(ctx, t, s, ps...), []string{"now", "now"})
}

func registrationsEnd(ctx context.Context, t T, s Subject) {
	hs := hosts(4)
	ps := processes(hs, "shop", "web")
	registerOn(ctx, t, s, true, "shop", "web", "old", hs[0])
	pass(ctx, t, s)
	asked, err := s.Now(ctx)
	must(t, err, "now")
	pass(ctx, t, s)
	register(ctx, t, s, true, catalog.Definition{Spec: marked("shop", "web", "asked"), Hosts: hs[:3], Asked: asked})
	registerOn(ctx, t, s, true, "shop", "web", "later", hs[1])
	end := func(at time.Time, want ...bool) {
		t.Helper()
		ended, err := s.EndRegistrations(ctx, append(slices.Clone(ps), ps[2]), at)
		must(t, err, "end registrations")
		equal(t, "ended", ended, want)
	}
	end(asked.Add(time.Microsecond), false, false, false, false, false)
	equal(t, "specs", marks(ctx, t, s, ps...), []string{"asked", "later", "asked", ""})
	end(asked, false, false, true, false, false)
	equal(t, "specs", marks(ctx, t, s, ps...), []string{"asked", "later", "", ""})
	equal(t, "entry", entries(ctx, t, s, ps[2])[0], catalog.Entry{Process: ps[2]})
	end(asked, false, false, false, false, false)
}

// pass waits until the store's clock has advanced.
func pass(ctx context.Context, t T, s Subject) {
	t.Helper()
	first, err := s.Now(ctx)
	for now := first; !now.After(first); now, err = s.Now(ctx) {
		must(t, err, "now")
	}
}

func repeatsWithinCall(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	twice := func(name string) []catalog.Definition {
		return []catalog.Definition{
			{Spec: marked("shop", name, "1"), Hosts: []procfleet.Host{a, b, a}},
			{Spec: marked("shop", name, "2"), Hosts: []procfleet.Host{b}},
			{Spec: marked("shop", name+"x", "3"), Hosts: []procfleet.Host{b}},
		}
	}
	for _, c := range []struct {
		name    string
		replace bool
		b       string
	}{{"keep", false, "1"}, {"take", true, "2"}} {
		equal(t, "existed", register(ctx, t, s, c.replace, twice(c.name)...), [][]bool{{false, false, true}, {true}, {false}})
		got := marks(ctx, t, s, process(a, "shop", c.name), process(b, "shop", c.name), process(b, "shop", c.name+"x"))
		equal(t, "specs with replace "+fmt.Sprint(c.replace), got, []string{"1", c.b, "3"})
		equal(t, "hosts", hostWalk(ctx, t, s, "shop", c.name, 10), []procfleet.Host{a, b})
	}
}

func unregisterSays(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	registerOn(ctx, t, s, false, "shop", "web", "w", a, b)
	registerOn(ctx, t, s, false, "shop", "db", "d", a)
	got := unregister(ctx, t, s, process(b, "shop", "db"), process(a, "shop", "web"), process(a, "shop", "web"), process(a, "nobody", "web"))
	equal(t, "existed", got, []bool{false, true, false, false})
	got = unregister(ctx, t, s, process(a, "shop", "web"))
	equal(t, "existed", got, []bool{false})
	left := marks(ctx, t, s, process(a, "shop", "web"), process(b, "shop", "web"), process(a, "shop", "db"))
	equal(t, "what is left", left, []string{"", "w", "d"})
	equal(t, "hosts", hostWalk(ctx, t, s, "shop", "web", 10), []procfleet.Host{b})
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop db: registered d", "0:10.0.0.2 shop web: registered w")
}

func newAgain(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	p := process(h, "shop", "web")
	registerOn(ctx, t, s, false, "shop", "web", "first", h)
	first := registrations(ctx, t, s, p)[0]
	unregister(ctx, t, s, p)
	pass(ctx, t, s)
	equal(t, "existed", registerOn(ctx, t, s, false, "shop", "web", "second", h), []bool{false})
	second := registrations(ctx, t, s, p)[0]
	equal(t, "spec", second.Spec.Contact, "second")
	if !second.RegisteredAt.After(first.RegisteredAt) {
		t.Errorf("registered at %v, unregistered, and registered again at %v", first.RegisteredAt, second.RegisteredAt)
	}
}

func notShared(ctx context.Context, t T, s Subject) {
	p := process(host(0, 1), "shop", "web")
	d := catalog.Definition{Spec: wholeSpec(), Hosts: []procfleet.Host{p.Host}}
	sent := report(p.Host, 1, running("shop", "web", 1))
	register(ctx, t, s, true, d)
	sendReports(ctx, t, s, sent)
	spoil := func(labels map[string][]byte) { labels["text"][1] = 'X' }
	spoil(map[string][]byte{"text": d.Spec.Labels["text"]})
	d.Spec.Control.Environment["LANG"], d.Hosts[0] = "C", host(9, 9)
	sent.Processes[0].Status.PID = 99
	want := entries(ctx, t, s, p)[0]
	equal(t, "spec", want.Registration.Spec, wholeSpec())
	equal(t, "reported", *want.Reported, running("shop", "web", 1))
	got := entries(ctx, t, s, p)[0]
	spoil(map[string][]byte{"text": got.Registration.Spec.Labels["text"]})
	got.Registration.Spec.Control.Environment["LANG"], got.Reported.Status.PID = "C", 99
	equal(t, "entry after a reader changed its own", entries(ctx, t, s, p)[0], want)
	templatesNotShared(ctx, t, s)
}

func templatesNotShared(ctx context.Context, t T, s Subject) {
	given, place := define("web", "a", "b"), place([]string{"s", "web 2"})
	id := edit(ctx, t, s, shop, given)[0].ID
	setTopology(ctx, t, s, shop, place)
	given.Set[catalog.AttrUser], given.Bind[0] = catalog.Text("spoilt"), "spoilt"
	place.Sets[0].Modules[0].Hosts[0], place.Sets[0].Name = host(9, 9), "spoilt"
	want := template(ctx, t, s, shop, id)
	equal(t, "template", want.Values, catalog.WithDefaults(named("web", nil)))
	equal(t, "modules", want.Modules, []string{"a", "b"})
	equal(t, "hosts", topology(ctx, t, s, shop).Sets[0].Modules[0].Hosts, hosts(2))
	for range 2 {
		page, _ := search(ctx, t, s, shop, catalog.Search{Limit: 1})
		page[0].Values[catalog.AttrUser], page[0].Modules[0] = catalog.Text("spoilt"), "spoilt"
		got := template(ctx, t, s, shop, id)
		got.Values[catalog.AttrUser], got.Modules[0] = catalog.Text("spoilt"), "spoilt"
	}
	equal(t, "template after a reader changed its own", template(ctx, t, s, shop, id).Modules, want.Modules)
	equal(t, "values after a reader changed its own", template(ctx, t, s, shop, id).Values, catalog.WithDefaults(named("web", nil)))
	equal(t, "found", found(ctx, t, s, condition(catalog.AttrUser, catalog.Is, catalog.Text("spoilt"))), []string(nil))
}

func hostsWalked(ctx context.Context, t T, s Subject) {
	want := wideHosts(t)
	for i := range want {
		h := want[(i*7)%len(want)]
		registerOn(ctx, t, s, false, "shop", "web", "w", h)
		registerOn(ctx, t, s, false, "shop", "web2", "w", host(0, 50+i)) // other names, between the hosts in the index
		registerOn(ctx, t, s, false, "shop2", "web", "w", host(0, 80+i))
		sendReports(ctx, t, s, report(host(0, 110+i), 1, running("shop", "web", 1))) // reported but not registered
	}
	for _, limit := range []int{1, 2, 5, 1000} {
		equal(t, "hosts", hostWalk(ctx, t, s, "shop", "web", limit), want)
	}
	equal(t, "hosts of an unregistered process", hostWalk(ctx, t, s, "shop", "we", 10), []procfleet.Host{})
}

func walkAfterAbsent(ctx context.Context, t T, s Subject) {
	all := hosts(30)
	registerOn(ctx, t, s, false, "shop", "web", "w", all...)
	slices.SortFunc(all, func(a, b procfleet.Host) int { return strings.Compare(a.Addr.String(), b.Addr.String()) })
	first, err := s.RegisteredHosts(ctx, "shop", "web", procfleet.Host{}, 10)
	must(t, err, "registered hosts")
	equal(t, "first page", first, all[:10])
	unregister(ctx, t, s, processes(all[5:12], "shop", "web")...)
	rest, err := s.RegisteredHosts(ctx, "shop", "web", all[9], 100)
	must(t, err, "registered hosts")
	equal(t, "hosts after one that is gone", rest, all[12:])
	none, err := s.RegisteredHosts(ctx, "shop", "web", host(4, 0), 100)
	must(t, err, "registered hosts")
	equal(t, "hosts after the last", none, []procfleet.Host{})
}

func manyHosts(ctx context.Context, t T, s Subject) {
	n := s.rounds(3000, 10_000)
	hs := hosts(n)
	ps := processes(hs, "shop", "web")
	same := func(what string, got []bool, want bool) {
		if len(got) != n || slices.Contains(got, !want) {
			t.Errorf("%s: %d answers, want %d that all are %v", what, len(got), n, want)
		}
	}
	same("registered", registerOn(ctx, t, s, false, "shop", "web", "w", hs...), false)
	same("registered again", registerOn(ctx, t, s, true, "shop", "web", "v", hs...), true)
	var rs []catalog.Report
	for _, h := range hs {
		rs = append(rs, report(h, 1, running("shop", "web", 1)))
	}
	sendReports(ctx, t, s, rs...)
	got := marks(ctx, t, s, ps...)
	if len(got) != n || slices.ContainsFunc(got, func(m string) bool { return m != "v" }) {
		t.Errorf("specs of %d registrations are not those that were registered last", n)
	}
	walked := map[procfleet.Host]bool{}
	for _, h := range hostWalk(ctx, t, s, "shop", "web", 999) {
		walked[h] = true
	}
	equal(t, "hosts walked", len(walked), n)
	page, total := entryPage(ctx, t, s, "shop", n-3, 1000)
	equal(t, "last page", []int{len(page), total}, []int{3, n})
	for _, e := range entries(ctx, t, s, ps...) {
		if e.Registration == nil || e.Reported == nil {
			t.Fatalf("entry %s", stand(e))
		}
	}
	same("unregistered", unregister(ctx, t, s, ps...), true)
	if left := hostWalk(ctx, t, s, "shop", "web", 1000); len(left) != 0 {
		t.Errorf("%d hosts are left of those that were unregistered", len(left))
	}
}

func oneRegistersFirst(ctx context.Context, t T, s Subject) {
	for _, replace := range []bool{false, true} {
		hs := hosts(20)
		name := fmt.Sprint("web", replace)
		var firsts atomic.Int64
		together(8, func(i int) {
			existed, err := s.Register(ctx, []catalog.Definition{{Spec: marked("shop", name, fmt.Sprint(i)), Hosts: hs}}, replace)
			if err != nil || len(existed) != 1 {
				t.Errorf("register: %v, %v", existed, err)
				return
			}
			for _, e := range existed[0] {
				if !e {
					firsts.Add(1)
				}
			}
		})
		equal(t, "registrations that were the first of their process", firsts.Load(), int64(len(hs)))
	}
}

func writersTogether(ctx context.Context, t T, s Subject) {
	const writers, rounds = 8, 10
	var existed [writers][]bool
	together(writers, func(i int) {
		name := fmt.Sprint("p", i)
		hs := hosts(writers)
		for n := range rounds {
			_, err := s.Register(ctx, []catalog.Definition{{Spec: marked("shop", name, fmt.Sprint(n)), Hosts: hs}}, true)
			if err == nil {
				err = s.Report(ctx, []catalog.Report{report(hs[i], n, running("shop", name, n))})
			}
			if err == nil {
				existed[i], err = s.Unregister(ctx, processes(hs[:i], "shop", name))
			}
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
				return
			}
		}
	})
	var want []string
	for i := range writers {
		equal(t, "existed", existed[i], slices.Repeat([]bool{true}, i))
		for j := i; j < writers; j++ {
			stand := fmt.Sprintf("3:10.0.0.%d shop p%d: registered %d", j, i, rounds-1)
			if i == j {
				stand += fmt.Sprintf(", reported %d", rounds-1)
			}
			want = append(want, stand)
		}
	}
	shown(ctx, t, s, "shop", want...)
}
