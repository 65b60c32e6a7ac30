package catalogtest

import (
	"context"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func groupChecks() []Check {
	return []Check{
		{Name: "groups are kept whole", Fn: groupsWhole},
		{Name: "groups are replaced and removed", Fn: groupsReplaced},
		{Name: "groups belong to a host and a namespace", Fn: groupsToldApart},
		{Name: "a host has the groups of all its namespaces", Fn: groupsOfHosts},
	}
}

func setGroups(ctx context.Context, t T, s catalog.Store, gs ...catalog.HostGroups) {
	t.Helper()
	must(t, s.SetGroups(ctx, gs), "set groups")
}

func groups(ctx context.Context, t T, s catalog.Store, namespace string, hs ...procfleet.Host) []catalog.HostGroups {
	t.Helper()
	gs, err := s.Groups(ctx, namespace, hs)
	must(t, err, "groups")
	if len(gs) != len(hs) {
		t.Fatalf("groups of %d hosts have %d answers", len(hs), len(gs))
	}
	for i, h := range hs {
		equal(t, "whose groups", []any{gs[i].Host, gs[i].Namespace}, []any{h, namespace})
	}
	return gs
}

func groupIDs(ctx context.Context, t T, s catalog.Store, namespace string, hs ...procfleet.Host) [][]string {
	t.Helper()
	out := make([][]string, len(hs))
	for i, g := range groups(ctx, t, s, namespace, hs...) {
		for _, one := range g.Groups {
			out[i] = append(out[i], one.ID)
		}
	}
	return out
}

func wholeGroups(h procfleet.Host) catalog.HostGroups {
	return catalog.HostGroups{
		Host: h, Namespace: "shop", Name: "web {1}", Labels: labels(),
		Groups: []catalog.Group{
			{ID: "z \"<1>\"", CPULimit: 10.5, MemoryLimit: 0.1, CPUByLimit: true},
			{ID: "a", MemoryLimit: 200, MemoryByLimit: true},
			{ID: ""},
		},
	}
}

func groupsWhole(ctx context.Context, t T, s Subject) {
	h := host(3, 1)
	setGroups(ctx, t, s, wholeGroups(h))
	got := groups(ctx, t, s, "shop", host(3, 2), h, h)
	equal(t, "groups", got, []catalog.HostGroups{{Host: host(3, 2), Namespace: "shop"}, wholeGroups(h), wholeGroups(h)})
	if _, total := entryPage(ctx, t, s, "shop", 0, 10); total != 0 {
		t.Errorf("groups make %d entries", total)
	}
}

func groupOf(h procfleet.Host, namespace, id string) catalog.HostGroups {
	g := catalog.HostGroups{Host: h, Namespace: namespace}
	if id != "" {
		g.Groups = []catalog.Group{{ID: id}}
	}
	return g
}

func groupsReplaced(ctx context.Context, t T, s Subject) {
	a, b, c := host(0, 1), host(0, 2), host(0, 3)
	setGroups(ctx, t, s, wholeGroups(a), groupOf(b, "shop", "1"), groupOf(c, "shop", "1"))
	setGroups(ctx, t, s, groupOf(a, "shop", "2"), groupOf(b, "shop", ""), groupOf(host(0, 4), "shop", ""))
	equal(t, "groups", groups(ctx, t, s, "shop", a, b, c), []catalog.HostGroups{groupOf(a, "shop", "2"), groupOf(b, "shop", ""), groupOf(c, "shop", "1")})
	setGroups(ctx, t, s, groupOf(a, "shop", ""), groupOf(a, "shop", "3"), groupOf(b, "shop", "3"), groupOf(b, "shop", "4"), groupOf(c, "shop", "3"), groupOf(c, "shop", ""))
	equal(t, "groups set twice in one call", groupIDs(ctx, t, s, "shop", a, b, c), [][]string{{"3"}, {"4"}, nil})
	// Removing groups also removes their labels and the name.
	empty := wholeGroups(a)
	empty.Groups = nil
	setGroups(ctx, t, s, empty)
	equal(t, "groups after their removal", groups(ctx, t, s, "shop", a)[0], groupOf(a, "shop", ""))
}

func groupsToldApart(ctx context.Context, t T, s Subject) {
	hs := wideHosts(t)
	var namespaces []string
	for _, n := range oddNames() {
		namespaces = append(namespaces, n[0])
	}
	var gs []catalog.HostGroups
	for _, n := range namespaces {
		for _, h := range hs {
			gs = append(gs, groupOf(h, n, n+h.String()))
		}
	}
	setGroups(ctx, t, s, gs...)
	setGroups(ctx, t, s, groupOf(hs[0], namespaces[0], ""))
	for _, n := range namespaces {
		var want [][]string
		for _, h := range hs {
			want = append(want, []string{n + h.String()})
		}
		if n == namespaces[0] {
			want[0] = nil
		}
		equal(t, "groups of "+n, groupIDs(ctx, t, s, n, hs...), want)
	}
}

func groupsOf(ctx context.Context, t T, s catalog.Store, hs ...procfleet.Host) [][]catalog.HostGroups {
	t.Helper()
	gs, err := s.GroupsOf(ctx, hs)
	must(t, err, "groups of hosts")
	if len(gs) != len(hs) {
		t.Fatalf("groups of %d hosts have %d answers", len(hs), len(gs))
	}
	return gs
}

func groupsOfHosts(ctx context.Context, t T, s Subject) {
	a, b := host(3, 1), host(3, 10) // the text of one address is a prefix of the other's
	mall := groupOf(a, "mall", "m")
	setGroups(ctx, t, s, wholeGroups(a), groupOf(a, "shop:x", "x"), mall, groupOf(b, "shop", "b"))
	equal(t, "groups of hosts", groupsOf(ctx, t, s, b, host(3, 2), a, b), [][]catalog.HostGroups{
		{groupOf(b, "shop", "b")}, nil, {mall, wholeGroups(a), groupOf(a, "shop:x", "x")}, {groupOf(b, "shop", "b")},
	})
	setGroups(ctx, t, s, groupOf(a, "shop", ""), groupOf(a, "shop:x", ""), groupOf(b, "shop", ""))
	equal(t, "groups of hosts", groupsOf(ctx, t, s, a, b, procfleet.Host{}), [][]catalog.HostGroups{{mall}, nil, nil})
}
