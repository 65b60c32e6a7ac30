package catalogtest

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func storeChecks() []Check {
	return []Check{
		{Name: "calls about nothing are answered with nothing", Fn: aboutNothing},
		{Name: "calls end with their context", Fn: cancelledContext},
		{Name: "what was confirmed survives", Fn: survivesReopen, Reopens: true},
		{Name: "the catalogue of a business survives", Fn: businessSurvives, Reopens: true},
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

// answers returns the number of results of each call with empty arguments.
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
	gone, err = s.EndRegistrations(ctx, nil, time.UnixMicro(1))
	count("EndRegistrations", len(gone), err)
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
	labeled, err := s.LabelHosts(ctx, nil, wholeLabeling())
	count("LabelHosts", len(labeled), err)
	labels, err := s.LabelsOf(ctx, nil)
	count("LabelsOf", len(labels), err)
	of, err := s.GroupsOf(ctx, nil)
	count("GroupsOf", len(of), err)
	ps, err := s.Policies(ctx, nil)
	count("Policies", len(ps), err)
	_, err = s.Freeze(ctx, nil, wholeFreezing())
	count("Freeze", 0, err)
	lifted, err := s.Lift(ctx, nil)
	count("Lift", len(lifted), err)
	fs, err := s.FreezesOf(ctx, nil)
	count("FreezesOf", len(fs), err)
	done, err := s.EditTemplates(ctx, shop, nil)
	count("EditTemplates", len(done), err)
	ts, err := s.Templates(ctx, shop, nil)
	count("Templates", len(ts), err)
	return n
}

// calls makes every call of the contract and returns the errors by name.
func calls(ctx context.Context, s catalog.Store) map[string]error {
	h := host(0, 1)
	p := process(h, "shop", "web")
	errs := map[string]error{}
	_, errs["Register"] = s.Register(ctx, []catalog.Definition{{Spec: marked("shop", "web", "w"), Hosts: []procfleet.Host{h}}}, true)
	_, errs["Unregister"] = s.Unregister(ctx, []catalog.Process{p})
	_, errs["EndRegistrations"] = s.EndRegistrations(ctx, []catalog.Process{p}, time.UnixMicro(1))
	_, errs["LabelHosts"] = s.LabelHosts(ctx, []procfleet.Host{h}, wholeLabeling())
	_, errs["LabelsOf"] = s.LabelsOf(ctx, []procfleet.Host{h})
	_, errs["Registrations"] = s.Registrations(ctx, []catalog.Process{p})
	_, errs["RegisteredHosts"] = s.RegisteredHosts(ctx, "shop", "web", procfleet.Host{}, 10)
	errs["Report"] = s.Report(ctx, []catalog.Report{report(h, 1, running("shop", "web", 1))})
	_, errs["Reported"] = s.Reported(ctx, []procfleet.Host{h})
	_, errs["Entries"] = s.Entries(ctx, []catalog.Process{p})
	_, _, errs["EntryPage"] = s.EntryPage(ctx, "shop", 0, 10)
	errs["SetGroups"] = s.SetGroups(ctx, []catalog.HostGroups{groupOf(h, "shop", "g")})
	_, errs["Groups"] = s.Groups(ctx, "shop", []procfleet.Host{h})
	_, errs["GroupsOf"] = s.GroupsOf(ctx, []procfleet.Host{h})
	errs["SetPolicies"] = s.SetPolicies(ctx, "shop", wholePolicies())
	_, errs["Policies"] = s.Policies(ctx, []string{"shop"})
	errs["SetSchedule"] = s.SetSchedule(ctx, wholeSchedule("shop", "a"))
	_, errs["RemoveSchedule"] = s.RemoveSchedule(ctx, "shop", "a")
	_, errs["Schedules"] = s.Schedules(ctx)
	errs["RecordRun"] = s.RecordRun(ctx, "shop", "a", runAt(1))
	errs["SetWebhook"] = s.SetWebhook(ctx, wholeWebhook("shop", "a"))
	_, errs["RemoveWebhook"] = s.RemoveWebhook(ctx, "shop", "a")
	_, errs["Webhooks"] = s.Webhooks(ctx)
	errs["RecordDelivery"] = s.RecordDelivery(ctx, "shop", "a", failingState(), deadAt(1))
	_, errs["DeadDeliveries"] = s.DeadDeliveries(ctx, "shop", "a")
	errs["RemoveDead"] = s.RemoveDead(ctx, "shop", "a", 1)
	_, errs["Freeze"] = s.Freeze(ctx, []catalog.Scope{onHost(h)}, wholeFreezing())
	_, errs["Lift"] = s.Lift(ctx, []catalog.Scope{onHost(h)})
	_, errs["FreezePage"] = s.FreezePage(ctx, catalog.Scope{}, 10)
	_, errs["FreezesOf"] = s.FreezesOf(ctx, []procfleet.Host{h})
	_, errs["EditTemplates"] = s.EditTemplates(ctx, shop, []catalog.Edit{define("web")})
	_, errs["DeleteTemplate"] = s.DeleteTemplate(ctx, shop, 1)
	_, errs["Templates"] = s.Templates(ctx, shop, []int64{1})
	_, _, errs["SearchTemplates"] = s.SearchTemplates(ctx, shop, catalog.Search{Limit: 1})
	_, errs["FindTemplates"] = s.FindTemplates(ctx, shop, catalog.Search{})
	_, errs["SetTopology"] = s.SetTopology(ctx, shop, place([]string{"s", "web 1"}))
	_, errs["SetModuleHosts"] = s.SetModuleHosts(ctx, shop, "s", "web", nil)
	_, errs["Topology"] = s.Topology(ctx, shop)
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
	equal(t, "freezes", freezeWalk(ctx, t, s, 10), []catalog.Freeze(nil))
	equal(t, "templates", found(ctx, t, s), []string(nil))
	equal(t, "topology", topology(ctx, t, s, shop), catalog.Topology{})
}

func survivesReopen(ctx context.Context, t T, s Subject) {
	h, other := host(3, 1), host(3, 2)
	p := process(h, "shop", "web")
	register(ctx, t, s, false, catalog.Definition{Spec: wholeSpec(), Hosts: []procfleet.Host{h, other}})
	registerOn(ctx, t, s, false, "shop", "db", "d", h, other)
	unregister(ctx, t, s, process(h, "shop", "db"))
	sendReports(ctx, t, s, wholeReport(h), report(other, 7, running("shop", "cache", 7)))
	setGroups(ctx, t, s, wholeGroups(h), groupOf(other, "shop", "g"), groupOf(other, "shop", ""))
	freeze(ctx, t, s, wholeFreezing(), onHost(h), onHost(other), everywhere("shop"))
	lift(ctx, t, s, onHost(h))
	setPolicies(ctx, t, s, "shop", wholePolicies())
	setSchedule(ctx, t, s, wholeSchedule("2", "a"))
	recordRun(ctx, t, s, "a", runAt(30))
	setWebhook(ctx, t, s, wholeWebhook("shop", "a"))
	recordDelivery(ctx, t, s, "a", failingState(), deadAt(7))
	wantSchedules := schedules(ctx, t, s)
	wantWebhooks, wantDead := webhooks(ctx, t, s), deadDeliveries(ctx, t, s, "a")
	wantFreezes := freezeWalk(ctx, t, s, 10)
	equal(t, "number of freezes", len(wantFreezes), 2)

	wantEntries, wantReports, wantGroups := entryWalk(ctx, t, s, "shop", 10), reported(ctx, t, s, h, other), groups(ctx, t, s, "shop", h, other)
	equal(t, "number of entries", len(wantEntries), 4)
	s.Store = s.Reopen()
	equal(t, "entries", entryWalk(ctx, t, s, "shop", 10), wantEntries)
	equal(t, "reports", reported(ctx, t, s, h, other), wantReports)
	equal(t, "groups", groups(ctx, t, s, "shop", h, other), wantGroups)
	equal(t, "freezes", freezeWalk(ctx, t, s, 10), wantFreezes)
	equal(t, "policies", policies(ctx, t, s, "shop"), []catalog.RolloutPolicies{wholePolicies()})
	equal(t, "schedules", schedules(ctx, t, s), wantSchedules)
	equal(t, "webhooks", webhooks(ctx, t, s), wantWebhooks)
	equal(t, "dead deliveries", deadDeliveries(ctx, t, s, "a"), wantDead)
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

func businessSurvives(ctx context.Context, t T, s Subject) {
	ids := idsOf(edit(ctx, t, s, shop, catalog.Edit{Set: wholeValues(), Bind: []string{"web"}}, define("db", "db"), define("gone"), define("last")))
	edit(ctx, t, s, shop, rename(ids[1], "front"), catalog.Edit{ID: ids[0], Unbind: []string{"web"}, Bind: []string{"a", "b"}})
	for _, id := range ids[2:] {
		_, err := s.DeleteTemplate(ctx, shop, id)
		must(t, err, "delete")
	}
	setTopology(ctx, t, s, shop, place([]string{"s", "web 2", "db 1"}))
	_, err := s.SetModuleHosts(ctx, shop, "s", "db", hosts(3))
	must(t, err, "set hosts of a module")
	wantTemplates, wantTopology := templates(ctx, t, s, shop, ids...), topology(ctx, t, s, shop)

	s.Store = s.Reopen()
	equal(t, "templates", templates(ctx, t, s, shop, ids...), wantTemplates)
	equal(t, "topology", topology(ctx, t, s, shop), wantTopology)
	equal(t, "found", found(ctx, t, s, condition(catalog.AttrModule, catalog.In, catalog.Text("db"), catalog.Text("web"))), []string{"front"})
	isDuplicate(t, "front", refusedEdit[*catalog.DuplicateError](ctx, t, s, "a second front", 0, define("front")), ids[1], catalog.AttrName)
	again := defined(ctx, t, s, "db", "gone")
	if again[0] <= ids[3] {
		t.Errorf("after %v, of which some are deleted, come the ids %v", ids, again)
	}
	wantTopology.Version = -1
	equal(t, "version", setTopology(ctx, t, s, shop, wantTopology), int64(3))
}
