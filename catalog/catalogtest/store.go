package catalogtest

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func storeChecks() []Check {
	return []Check{
		{Name: "calls about nothing are answered with nothing", Fn: aboutNothing},
		{Name: "calls end with their context", Fn: cancelledContext},
		{Name: "what was confirmed survives", Fn: survivesReopen, Reopens: true},
	}
}

func aboutNothing(ctx context.Context, t T, s Subject) {
	for name, n := range answers(ctx, t, s) {
		if n != 0 {
			t.Errorf("%s of nothing has %d answers", name, n)
		}
	}
	existed := register(ctx, t, s, true, catalog.Definition{Spec: marked("shop", "web", "w")})
	equal(t, "existed", existed, [][]bool{{}})
	shown(ctx, t, s, "shop")
}

// answers counts the answers of calls that ask for nothing.
func answers(ctx context.Context, t T, s catalog.Store) map[string]int {
	t.Helper()
	n := map[string]int{}
	count := func(name string, answers int, err error) {
		must(t, err, name)
		n[name] = answers
	}
	existed, err := s.Register(ctx, nil, false)
	count("Register", len(existed), err)
	gone, err := s.Unregister(ctx, nil)
	count("Unregister", len(gone), err)
	registered, err := s.Registrations(ctx, nil)
	count("Registrations", len(registered), err)
	count("Report", 0, s.Report(ctx, nil))
	reports, err := s.Reported(ctx, nil)
	count("Reported", len(reports), err)
	es, err := s.Entries(ctx, nil)
	count("Entries", len(es), err)
	count("SetGroups", 0, s.SetGroups(ctx, nil))
	gs, err := s.Groups(ctx, "shop", nil)
	count("Groups", len(gs), err)
	return n
}

// calls makes every call of the contract, by name.
func calls(ctx context.Context, s catalog.Store) map[string]error {
	h := host(0, 1)
	p := process(h, "shop", "web")
	errs := map[string]error{}
	_, errs["Register"] = s.Register(ctx, []catalog.Definition{{Spec: marked("shop", "web", "w"), Hosts: []procfleet.Host{h}}}, true)
	_, errs["Unregister"] = s.Unregister(ctx, []catalog.Process{p})
	_, errs["Registrations"] = s.Registrations(ctx, []catalog.Process{p})
	_, errs["RegisteredHosts"] = s.RegisteredHosts(ctx, "shop", "web", procfleet.Host{}, 10)
	errs["Report"] = s.Report(ctx, []catalog.Report{report(h, 1, running("shop", "web", 1))})
	_, errs["Reported"] = s.Reported(ctx, []procfleet.Host{h})
	_, errs["Entries"] = s.Entries(ctx, []catalog.Process{p})
	_, _, errs["EntryPage"] = s.EntryPage(ctx, "shop", 0, 10)
	errs["SetGroups"] = s.SetGroups(ctx, []catalog.HostGroups{groupOf(h, "shop", "g")})
	_, errs["Groups"] = s.Groups(ctx, "shop", []procfleet.Host{h})
	return errs
}

func cancelledContext(ctx context.Context, t T, s Subject) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	for name, err := range calls(over, s) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
	shown(ctx, t, s, "shop")
	equal(t, "groups", groupIDs(ctx, t, s, "shop", host(0, 1)), [][]string{nil})
}

func survivesReopen(ctx context.Context, t T, s Subject) {
	h, other := host(3, 1), host(3, 2)
	p := process(h, "shop", "web")
	register(ctx, t, s, false, catalog.Definition{Spec: wholeSpec(), Hosts: []procfleet.Host{h, other}})
	registerOn(ctx, t, s, false, "shop", "db", "d", h, other)
	unregister(ctx, t, s, process(h, "shop", "db"))
	sendReports(ctx, t, s, wholeReport(h), report(other, 7, running("shop", "cache", 7)))
	setGroups(ctx, t, s, wholeGroups(h), groupOf(other, "shop", "g"), groupOf(other, "shop", ""))

	wantEntries, wantReports, wantGroups := entryWalk(ctx, t, s, "shop", 10), reported(ctx, t, s, h, other), groups(ctx, t, s, "shop", h, other)
	equal(t, "number of entries", len(wantEntries), 4)
	s.Store = s.Reopen()
	equal(t, "entries", entryWalk(ctx, t, s, "shop", 10), wantEntries)
	equal(t, "reports", reported(ctx, t, s, h, other), wantReports)
	equal(t, "groups", groups(ctx, t, s, "shop", h, other), wantGroups)
	equal(t, "hosts", hostWalk(ctx, t, s, "shop", "web", 10), []procfleet.Host{h, other})

	pass(ctx, t, s)
	equal(t, "existed", registerOn(ctx, t, s, true, "shop", "web", "new", h, other), []bool{true, true})
	equal(t, "moment of the registration", registrations(ctx, t, s, p)[0].RegisteredAt, entryOf(wantEntries, p).Registration.RegisteredAt)
	sendReports(ctx, t, s, report(other, 6, running("shop", "cache", 6)))
	equal(t, "report after an older one", reported(ctx, t, s, other)[0], report(other, 7, running("shop", "cache", 7)))
}

func entryOf(es []catalog.Entry, p catalog.Process) catalog.Entry {
	for _, e := range es {
		if e.Process == p {
			return e
		}
	}
	return catalog.Entry{Registration: &catalog.Registration{}}
}
