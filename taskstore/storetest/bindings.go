package storetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func bindingChecks() []Check {
	return []Check{
		{Name: "a bound agent id leads to its host", Fn: boundResolves},
		{Name: "a bound id comes before what an agent announces", Fn: boundBeforeAnnounced},
		{Name: "a bound id ends when the host's agent announces another", Fn: boundEnds},
		{Name: "a bound id leads to one host, but a host may have some", Fn: boundOnce},
		{Name: "bindings without an id or a host are refused", Fn: badBindings},
		{Name: "a bound id lasts", Fn: boundLasts, Needs: Needs{Advance: true}},
	}
}

// bind binds agent ids to hosts and fails the check on an error.
func bind(ctx context.Context, t T, s taskstore.Store, bs ...taskstore.AgentBinding) {
	t.Helper()
	must(t, s.Bind(ctx, bs), "bind")
}

func binding(id string, h procfleet.Host) taskstore.AgentBinding {
	return taskstore.AgentBinding{AgentID: id, Host: h}
}

// idless returns an announcement of an agent without an agent id.
func idless(h procfleet.Host, instance string) taskstore.Announcement {
	a := announcement(h, instance)
	a.AgentID = ""
	return a
}

func boundResolves(ctx context.Context, t T, s Subject) {
	a, b, far := host(0, 1), host(0, 2), host(7_000_000_000, 1)
	v6, err := procfleet.ParseHost("3:fd00::1")
	must(t, err, "parse host")
	announce(ctx, t, s, idless(a, "i"))
	bind(ctx, t, s, binding("id: {a}/1", a), binding("b", b), binding("far", far), binding("v6", v6))
	bind(ctx, t, s)
	resolved(ctx, t, s, map[string]procfleet.Host{"id: {a}/1": a, "b": b, "far": far, "v6": v6, "nowhere": {}, "": {}, "id": {}})
	announce(ctx, t, s, idless(a, "i"), idless(b, "i"), farewell(a, "i"))
	bind(ctx, t, s, binding("b", b))
	resolved(ctx, t, s, map[string]procfleet.Host{"id: {a}/1": a, "b": b})
	if got, err := s.Resolve(ctx, []string{"v6", "?", "id: {a}/1", "v6"}); err != nil || !equal(t, "hosts", got, []procfleet.Host{v6, {}, a, v6}) {
		t.Errorf("resolve: %v", err)
	}
	equal(t, "presence of a host that is only bound", presence(ctx, t, s, far), taskstore.Presence{})
}

func boundBeforeAnnounced(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(5, 2)
	id := announcement(a, "").AgentID
	announce(ctx, t, s, announcement(a, "i"))
	resolved(ctx, t, s, map[string]procfleet.Host{id: a})
	bind(ctx, t, s, binding(id, b))
	for range 2 {
		resolved(ctx, t, s, map[string]procfleet.Host{id: b})
		announce(ctx, t, s, announcement(a, "i"), announcement(a, "other"))
	}
	claims(ctx, t, s, id, a)
	bind(ctx, t, s, binding(id, a))
	other := announcement(b, "i")
	other.AgentID = id
	announce(ctx, t, s, other)
	resolved(ctx, t, s, map[string]procfleet.Host{id: a}) // a binding takes precedence over announced ids
}

func boundEnds(ctx context.Context, t T, s Subject) {
	h, other := host(0, 1), host(0, 2)
	bind(ctx, t, s, binding("bound", h), binding("other", other))
	own := announcement(h, "i")
	own.AgentID = "bound"
	announce(ctx, t, s, idless(h, "i"), own, idless(h, "i"), announcement(host(0, 3), "i"))
	resolved(ctx, t, s, map[string]procfleet.Host{"bound": h, "other": other})
	announce(ctx, t, s, announcement(h, "i"))
	resolved(ctx, t, s, map[string]procfleet.Host{"bound": {}, "other": other, announcement(h, "").AgentID: h})
	bind(ctx, t, s, binding("bound", h))
	announce(ctx, t, s, announcement(h, "i"), idless(h, "i")) // neither changes the announced id
	resolved(ctx, t, s, map[string]procfleet.Host{"bound": h})
}

func boundOnce(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(5, 2)
	bind(ctx, t, s, binding("1", a), binding("2", a), binding("1", a))
	resolved(ctx, t, s, map[string]procfleet.Host{"1": a, "2": a})
	bind(ctx, t, s, binding("2", b))
	resolved(ctx, t, s, map[string]procfleet.Host{"1": a, "2": b})
	// Id 2 is now bound to b, so an announcement of a's agent must not end that binding.
	announce(ctx, t, s, announcement(a, "i"))
	resolved(ctx, t, s, map[string]procfleet.Host{"1": {}, "2": b})
	want := map[string]procfleet.Host{"2": b}
	for i := range taskstore.MaxHostBound + 2 {
		id := fmt.Sprint("many ", i)
		bind(ctx, t, s, binding(id, a))
		want[id] = a
	}
	want["many 0"], want["many 1"] = procfleet.Host{}, procfleet.Host{}
	resolved(ctx, t, s, want)
}

func badBindings(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	long := strings.Repeat("x", taskstore.MaxAgentID)
	bind(ctx, t, s, binding(long, h))
	resolved(ctx, t, s, map[string]procfleet.Host{long: h})
	for _, bad := range []taskstore.AgentBinding{binding("", h), binding("nowhere", procfleet.Host{}), binding(long+"x", h)} {
		if err := s.Bind(ctx, []taskstore.AgentBinding{binding("good", h), bad}); err == nil {
			t.Errorf("bound: %+v", bad)
		}
		resolved(ctx, t, s, map[string]procfleet.Host{bad.AgentID: {}, "good": {}})
	}
}

func boundLasts(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, idless(h, "i"))
	bind(ctx, t, s, binding("bound", h), binding("silent", host(4, 1)))
	for range 3 {
		s.Advance(taskstore.PresenceTTL + taskstore.InstanceMemory + time.Second)
		announce(ctx, t, s, idless(host(0, 2), "i")) // Announce may remove expired presences
		resolved(ctx, t, s, map[string]procfleet.Host{"bound": h, "silent": host(4, 1)})
	}
	announce(ctx, t, s, idless(h, "other"))
	resolved(ctx, t, s, map[string]procfleet.Host{"bound": h})
}
