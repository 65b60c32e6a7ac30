package catalogtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func freezeChecks() []Check {
	return []Check{
		{Name: "a freeze is kept whole", Fn: freezeWhole},
		{Name: "a freeze takes the place of the one before", Fn: freezeReplaced},
		{Name: "a freeze ends by itself", Fn: freezeEnds},
		{Name: "lift says what was frozen", Fn: freezeLifted},
		{Name: "a host has its own freezes and those of namespaces everywhere", Fn: freezesOfHosts},
		{Name: "freezes are walked in order, each once", Fn: freezesWalked},
		{Name: "one call freezes 2,000 hosts", Fn: freezeMany, Heavy: true},
		{Name: "what cannot be frozen is refused", Fn: freezeRefused},
	}
}

func freeze(ctx context.Context, t T, s catalog.Store, f catalog.Freezing, scopes ...catalog.Scope) time.Time {
	t.Helper()
	until, err := s.Freeze(ctx, scopes, f)
	must(t, err, "freeze")
	return until
}

func lift(ctx context.Context, t T, s catalog.Store, scopes ...catalog.Scope) []bool {
	t.Helper()
	existed, err := s.Lift(ctx, scopes)
	must(t, err, "lift")
	if len(existed) != len(scopes) {
		t.Fatalf("lift of %d scopes has %d answers", len(scopes), len(existed))
	}
	return existed
}

// freezeWalk reads all freezes in pages of limit.
func freezeWalk(ctx context.Context, t T, s catalog.Store, limit int) []catalog.Freeze {
	t.Helper()
	var all []catalog.Freeze
	after := catalog.Scope{}
	for {
		page, err := s.FreezePage(ctx, after, limit)
		must(t, err, "freeze page")
		if len(page) > limit {
			t.Fatalf("a page of at most %d has %d freezes", limit, len(page))
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1].Scope
		if len(all) > 100_000 {
			t.Fatalf("the walk over all freezes does not end")
		}
	}
}

func freezesOf(ctx context.Context, t T, s catalog.Store, hs ...procfleet.Host) [][]catalog.Freeze {
	t.Helper()
	fs, err := s.FreezesOf(ctx, hs)
	must(t, err, "freezes of hosts")
	if len(fs) != len(hs) {
		t.Fatalf("freezes of %d hosts have %d answers", len(hs), len(fs))
	}
	return fs
}

func scopesOf(fs []catalog.Freeze) []catalog.Scope {
	var scopes []catalog.Scope
	for _, f := range fs {
		scopes = append(scopes, f.Scope)
	}
	return scopes
}

func wholeFreezing() catalog.Freezing {
	return catalog.Freezing{TTL: time.Hour, Reason: "release \"7\" <升级>\n", By: "shop (admin)"}
}

func onHost(h procfleet.Host) catalog.Scope { return catalog.Scope{Host: h} }

func everywhere(namespace string) catalog.Scope { return catalog.Scope{Namespace: namespace} }

func freezeWhole(ctx context.Context, t T, s Subject) {
	scope := catalog.Scope{Host: host(3, 1), Namespace: "shop {\"a:b\"}"}
	before, err := s.Now(ctx)
	must(t, err, "now")
	until := freeze(ctx, t, s, wholeFreezing(), scope)
	after, err := s.Now(ctx)
	must(t, err, "now")
	if until.Before(before.Add(time.Hour)) || until.After(after.Add(time.Hour)) {
		t.Errorf("frozen for an hour between %v and %v, it ends %v", before, after, until)
	}
	want := []catalog.Freeze{{Scope: scope, Until: until.UTC(), Reason: wholeFreezing().Reason, By: wholeFreezing().By}}
	equal(t, "freezes", freezeWalk(ctx, t, s, 10), want)
	equal(t, "freezes of the host", freezesOf(ctx, t, s, scope.Host), [][]catalog.Freeze{want})
}

func freezeReplaced(ctx context.Context, t T, s Subject) {
	h := onHost(host(0, 1))
	freeze(ctx, t, s, wholeFreezing(), h)
	until := freeze(ctx, t, s, catalog.Freezing{TTL: time.Minute, Reason: "shorter"}, h, h)
	want := []catalog.Freeze{{Scope: h, Until: until, Reason: "shorter"}}
	equal(t, "a shorter freeze", freezeWalk(ctx, t, s, 10), want)
	want[0].Until = freeze(ctx, t, s, catalog.Freezing{TTL: catalog.MaxFreeze, Reason: "shorter"}, h)
	equal(t, "a longer freeze", freezeWalk(ctx, t, s, 10), want)
}

func freezeEnds(ctx context.Context, t T, s Subject) {
	short, long := onHost(host(0, 1)), onHost(host(0, 2))
	freeze(ctx, t, s, wholeFreezing(), long)
	until := freeze(ctx, t, s, catalog.Freezing{TTL: catalog.MinFreeze}, short, everywhere("shop"))
	for now := until; !now.After(until); {
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
		var err error
		now, err = s.Now(ctx)
		must(t, err, "now")
	}
	equal(t, "what is frozen", scopesOf(freezeWalk(ctx, t, s, 1)), []catalog.Scope{long})
	of := freezesOf(ctx, t, s, short.Host, long.Host)
	equal(t, "what is frozen on the hosts", [][]catalog.Scope{scopesOf(of[0]), scopesOf(of[1])}, [][]catalog.Scope{nil, {long}})
	equal(t, "lifted", lift(ctx, t, s, short, long), []bool{false, true})
	// An ended freeze must not affect a new freeze of the same scope.
	freeze(ctx, t, s, wholeFreezing(), short)
	equal(t, "what is frozen again", scopesOf(freezeWalk(ctx, t, s, 1)), []catalog.Scope{short})
}

func freezeLifted(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	part := catalog.Scope{Host: h, Namespace: "shop"}
	freeze(ctx, t, s, wholeFreezing(), onHost(h), part, everywhere("shop"))
	equal(t, "lifted", lift(ctx, t, s, everywhere("mall"), part, onHost(host(0, 2)), part, catalog.Scope{}), []bool{false, true, false, false, false})
	equal(t, "still frozen", scopesOf(freezeWalk(ctx, t, s, 10)), []catalog.Scope{everywhere("shop"), onHost(h)})
	equal(t, "lifted", lift(ctx, t, s, onHost(h), everywhere("shop")), []bool{true, true})
	equal(t, "still frozen", scopesOf(freezeWalk(ctx, t, s, 10)), []catalog.Scope(nil))
	freeze(ctx, t, s, wholeFreezing(), part)
	equal(t, "frozen again", scopesOf(freezeWalk(ctx, t, s, 10)), []catalog.Scope{part})
}

func freezesOfHosts(ctx context.Context, t T, s Subject) {
	a, b, c := host(3, 1), host(3, 10), host(12, 1)
	part := catalog.Scope{Host: a, Namespace: "shop"}
	freeze(ctx, t, s, wholeFreezing(), onHost(b), part, everywhere("shop"), everywhere("mall"), onHost(a))
	var got [][]catalog.Scope
	for _, of := range freezesOf(ctx, t, s, a, c, b, a) {
		got = append(got, scopesOf(of))
	}
	all := []catalog.Scope{everywhere("mall"), everywhere("shop")}
	ofA := append(slices.Clone(all), onHost(a), part)
	equal(t, "freezes of hosts", got, [][]catalog.Scope{ofA, all, append(slices.Clone(all), onHost(b)), ofA})
}

// everyScope returns scopes in the order of [catalog.Freezes].
func everyScope(t T) []catalog.Scope {
	t.Helper()
	names := []string{"", "A", "a", "a b", "a:b", "aa", "é", "中"}
	var scopes []catalog.Scope
	for _, n := range names[1:] {
		scopes = append(scopes, everywhere(n))
	}
	for _, h := range wideHosts(t) {
		for _, n := range names {
			scopes = append(scopes, catalog.Scope{Host: h, Namespace: n})
		}
	}
	return scopes
}

func freezesWalked(ctx context.Context, t T, s Subject) {
	want := everyScope(t)
	backwards := slices.Clone(want)
	slices.Reverse(backwards)
	freeze(ctx, t, s, wholeFreezing(), backwards...)
	for _, limit := range []int{1, 7, 1000} {
		equal(t, "walk over all freezes", scopesOf(freezeWalk(ctx, t, s, limit)), want)
	}
	// A walk must continue after a scope that was lifted in the meantime.
	lift(ctx, t, s, want[10])
	page, err := s.FreezePage(ctx, want[10], 2)
	must(t, err, "freeze page")
	equal(t, "page after what was lifted", scopesOf(page), want[11:13])
}

func freezeMany(ctx context.Context, t T, s Subject) {
	var want []catalog.Scope
	for _, h := range hosts(2000) {
		want = append(want, onHost(h))
	}
	freeze(ctx, t, s, wholeFreezing(), want...)
	got := scopesOf(freezeWalk(ctx, t, s, 999))
	slices.SortFunc(want, func(a, b catalog.Scope) int { return compareHosts(a.Host, b.Host) })
	equal(t, "freezes", got, want)
	equal(t, "lifted", slices.Index(lift(ctx, t, s, want...), false), -1)
	equal(t, "freezes", freezeWalk(ctx, t, s, 999), []catalog.Freeze(nil))
}

func freezeRefused(ctx context.Context, t T, s Subject) {
	good, fine := onHost(host(0, 1)), wholeFreezing()
	refuse := func(what string, f catalog.Freezing, scopes ...catalog.Scope) {
		t.Helper()
		_, err := s.Freeze(ctx, scopes, f)
		if _, ok := errors.AsType[*procfleet.FieldError](err); !ok {
			t.Errorf("freeze %s: %v", what, err)
		}
	}
	refuse("nothing", fine, good, catalog.Scope{})
	refuse("a namespace that is none", fine, good, everywhere("a\x00b"))
	refuse("a namespace that is too long", fine, catalog.Scope{Host: host(0, 1), Namespace: strings.Repeat("n", procfleet.MaxKey+1)}, good)
	refuse("for no time", catalog.Freezing{}, good)
	refuse("for less than a second", catalog.Freezing{TTL: catalog.MinFreeze - 1}, good)
	refuse("for more than a day", catalog.Freezing{TTL: catalog.MaxFreeze + 1}, good)
	refuse("for a reason without end", catalog.Freezing{TTL: time.Hour, Reason: strings.Repeat("x", catalog.MaxReason+1)}, good)
	refuse("by an invalid text", catalog.Freezing{TTL: time.Hour, By: "\xff"}, good)
	equal(t, "freezes", freezeWalk(ctx, t, s, 10), []catalog.Freeze(nil))
}
