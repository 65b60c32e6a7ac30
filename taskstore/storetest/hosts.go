package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func hostChecks() []Check {
	return []Check{
		{Name: "presences are answered in order", Fn: presencesInOrder},
		{Name: "a presence ends", Fn: presenceEnds, Needs: Needs{Advance: true}},
		{Name: "since is of the instance", Fn: sinceOfInstance, Needs: Needs{Advance: true}},
		{Name: "since survives that the instance left", Fn: sinceSurvivesLeaving},
		{Name: "since survives silence", Fn: sinceSurvivesSilence, Needs: Needs{Advance: true}},
		{Name: "since is new after another instance", Fn: sinceAfterAnother},
		{Name: "an instance is forgotten in the end", Fn: instanceForgotten, Needs: Needs{Advance: true}},
		{Name: "two live instances are a conflict", Fn: conflictABA},
		{Name: "a conflict ends with one of the two", Fn: conflictEnds, Needs: Needs{Advance: true}},
		{Name: "an instance that comes back after the other is gone is no conflict", Fn: noConflictWithDead, Needs: Needs{Advance: true}},
		{Name: "instances that leave for one another are no conflict", Fn: noConflictWithGone},
		{Name: "a conflict ends when one of the two leaves", Fn: conflictEndsByLeaving},
		{Name: "a restarted agent is the same instance and no conflict", Fn: restartIsNoConflict},
		{Name: "two live incarnations of an instance are a conflict", Fn: conflictOfIncarnations, Needs: Needs{Advance: true}},
		{Name: "leaving ends a presence", Fn: leavingEnds},
		{Name: "leaving of a former instance ends nothing", Fn: formerLeaves},
		{Name: "agent ids resolve to hosts", Fn: agentsResolve},
		{Name: "an id that two live agents announce leads nowhere", Fn: rivalsResolveNowhere, Needs: Needs{Advance: true}},
		{Name: "agent ids of the silent do not resolve", Fn: silentDoNotResolve, Needs: Needs{Advance: true}},
		{Name: "host pages are in order", Fn: hostPagesInOrder},
		{Name: "host pages show the living", Fn: hostPagesLive, Needs: Needs{Advance: true}},
		{Name: "host pages show the living when the clock steps back", Fn: hostPagesAfterStepBack, Needs: Needs{Advance: true}},
	}
}

func announcement(h procfleet.Host, instance string) taskstore.Announcement {
	return taskstore.Announcement{
		Host: h, AgentID: "agent-" + h.String(), Instance: instance, Version: "1.0.0", OS: "linux", Arch: "amd64",
		StartedAt: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), Supervised: 4,
		CPU: 12.5, Memory: 40.25, Labels: map[string]string{"zone": "a=1", "rack": ""},
	}
}

func announce(ctx context.Context, t T, s taskstore.Store, as ...taskstore.Announcement) {
	t.Helper()
	must(t, s.Announce(ctx, as), "announce")
}

// incarnation returns an announcement of an instance with the incarnation name.
func incarnation(h procfleet.Host, instance, name string) taskstore.Announcement {
	a := announcement(h, instance)
	a.Incarnation = name
	return a
}

func restartIsNoConflict(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, incarnation(h, "i", "0"))
	first := presence(ctx, t, s, h)
	for _, name := range []string{"1", "2", "3"} { // each is killed, so that it does not announce Leaving
		announce(ctx, t, s, incarnation(h, "i", name), incarnation(h, "i", name))
		p := presence(ctx, t, s, h)
		mustBeSince(t, p, "i", first.Since)
		equal(t, "announcement", p.Announcement, incarnation(h, "i", name))
	}
	bye := incarnation(h, "i", "3")
	bye.Leaving = true
	announce(ctx, t, s, bye)
	equal(t, "presence of one that left", presence(ctx, t, s, h), taskstore.Presence{})
	announce(ctx, t, s, incarnation(h, "i", "4"))
	mustBeSince(t, presence(ctx, t, s, h), "i", first.Since)
	bye = incarnation(h, "i", "3") // a delayed Leaving announcement of an earlier incarnation
	bye.Leaving = true
	announce(ctx, t, s, bye)
	mustBeSince(t, presence(ctx, t, s, h), "i", first.Since)
}

func conflictOfIncarnations(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, incarnation(h, "i", "1"), incarnation(h, "i", "2"))
	first := presence(ctx, t, s, h)
	for _, name := range []string{"1", "2", "1"} {
		announce(ctx, t, s, incarnation(h, "i", name))
		if p := presence(ctx, t, s, h); !p.Conflict || p.Incarnation != name || !p.Since.Equal(first.Since) {
			t.Errorf("both live, and %s was heard of last: %+v", name, p)
		}
	}
	bye := incarnation(h, "i", "2")
	bye.Leaving = true
	announce(ctx, t, s, bye)
	if p := presence(ctx, t, s, h); p.Conflict || p.Incarnation != "1" {
		t.Errorf("one of the two left: %+v", p)
	}
	announce(ctx, t, s, incarnation(h, "i", "2"), incarnation(h, "i", "1"))
	if p := presence(ctx, t, s, h); !p.Conflict {
		t.Errorf("it is back: %+v", p)
	}
	for range 2 {
		s.Advance(taskstore.PresenceTTL/2 + time.Second)
		announce(ctx, t, s, incarnation(h, "i", "1"))
	}
	if p := presence(ctx, t, s, h); p.Conflict {
		t.Errorf("one of the two is silent: %+v", p)
	}
	announce(ctx, t, s, incarnation(h, "i", "3"), incarnation(h, "i", "1"), incarnation(h, "i", "3"))
	if p := presence(ctx, t, s, h); !p.Conflict || p.Incarnation != "3" {
		t.Errorf("a third one names the other: %+v", p)
	}
}

// farewell returns the Leaving announcement of an instance.
func farewell(h procfleet.Host, instance string) taskstore.Announcement {
	a := announcement(h, instance)
	a.Leaving = true
	return a
}

func presence(ctx context.Context, t T, s taskstore.Store, h procfleet.Host) taskstore.Presence {
	t.Helper()
	ps, err := s.Presences(ctx, []procfleet.Host{h})
	must(t, err, "presences")
	if len(ps) != 1 {
		t.Fatalf("%d presences of one host", len(ps))
	}
	return ps[0]
}

func presencesInOrder(ctx context.Context, t T, s Subject) {
	a, b, c := host(0, 1), host(5, 1), host(0, 2)
	noHost := announcement(procfleet.Host{}, "in") // must not prevent the other announcements
	announce(ctx, t, s, announcement(a, "ia"), noHost, announcement(b, "ib"))
	got, err := s.Presences(ctx, []procfleet.Host{b, c, a, b, {}})
	must(t, err, "presences")
	if len(got) != 5 {
		t.Fatalf("%d presences of 5 hosts", len(got))
	}
	for i, want := range []taskstore.Announcement{announcement(b, "ib"), {}, announcement(a, "ia"), announcement(b, "ib"), {}} {
		equal(t, "announcement", got[i].Announcement, want)
		if got[i].Conflict || got[i].SeenAt.IsZero() != want.Host.IsZero() || !got[i].Since.Equal(got[i].SeenAt) {
			t.Errorf("presence %d is %+v", i, got[i])
		}
	}
	changed := announcement(a, "ia")
	changed.Supervised, changed.Version = 9, "1.0.1"
	announce(ctx, t, s, announcement(a, "ia"), changed)
	equal(t, "last announcement", presence(ctx, t, s, a).Announcement, changed)
	if ps, err := s.Presences(ctx, nil); err != nil || len(ps) != 0 {
		t.Errorf("presences of no host: %v, %v", ps, err)
	}
}

func presenceEnds(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "i"))
	s.Advance(taskstore.PresenceTTL - 10*time.Second)
	equal(t, "host while it counts", presence(ctx, t, s, h).Host, h)
	announce(ctx, t, s, announcement(h, "i"))
	s.Advance(taskstore.PresenceTTL - 10*time.Second)
	equal(t, "host after it was announced again", presence(ctx, t, s, h).Host, h)
	s.Advance(11 * time.Second)
	equal(t, "presence after its time", presence(ctx, t, s, h), taskstore.Presence{})
}

func sinceOfInstance(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "i1"))
	first := presence(ctx, t, s, h)
	s.Advance(30 * time.Second)
	announce(ctx, t, s, announcement(h, "i1"))
	again := presence(ctx, t, s, h)
	if !again.Since.Equal(first.Since) || again.SeenAt.Sub(first.SeenAt) < 30*time.Second {
		t.Errorf("announced at %v and again: since %v, seen %v", first.SeenAt, again.Since, again.SeenAt)
	}
	s.Advance(30 * time.Second)
	announce(ctx, t, s, announcement(h, "i2"))
	other := presence(ctx, t, s, h)
	if other.Instance != "i2" || !other.Since.Equal(other.SeenAt) || other.Since.Sub(first.Since) < 60*time.Second || other.Conflict {
		t.Errorf("new instance: %+v", other)
	}
}

// mustBeSince fails the check unless p is a presence of instance with the given Since. A
// zero since stands for p.SeenAt.
func mustBeSince(t T, p taskstore.Presence, instance string, since time.Time) {
	t.Helper()
	if since.IsZero() {
		since = p.SeenAt
	} else if !p.SeenAt.After(since) {
		t.Errorf("seen at %v, and again, at %v", since, p.SeenAt)
	}
	if p.Instance != instance || p.Leaving || !p.Since.Equal(since) || p.Conflict {
		t.Errorf("want instance %s since %v, no conflict: %+v", instance, since, p)
	}
}

func sinceSurvivesLeaving(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"))
	first := presence(ctx, t, s, h)
	for range 2 {
		announce(ctx, t, s, farewell(h, "a"), farewell(h, "a"))
		equal(t, "presence", presence(ctx, t, s, h), taskstore.Presence{})
		announce(ctx, t, s, announcement(h, "a"))
		mustBeSince(t, presence(ctx, t, s, h), "a", first.Since)
	}
	resolved(ctx, t, s, map[string]procfleet.Host{first.AgentID: h})
	equal(t, "hosts", hostWalk(ctx, t, s, 10), []procfleet.Host{h})
}

func sinceSurvivesSilence(ctx context.Context, t T, s Subject) {
	h, busy := host(0, 1), host(0, 2)
	announce(ctx, t, s, announcement(h, "a"))
	first := presence(ctx, t, s, h)
	for _, silence := range []time.Duration{taskstore.PresenceTTL + time.Second, 24 * time.Hour, taskstore.InstanceMemory - time.Hour} {
		s.Advance(silence)
		announce(ctx, t, s, announcement(busy, "i")) // Announce may remove expired presences
		equal(t, "presence", presence(ctx, t, s, h), taskstore.Presence{})
		resolved(ctx, t, s, map[string]procfleet.Host{first.AgentID: {}})
		equal(t, "hosts", hostWalk(ctx, t, s, 1), []procfleet.Host{busy})
		announce(ctx, t, s, announcement(h, "a"))
		mustBeSince(t, presence(ctx, t, s, h), "a", first.Since)
		resolved(ctx, t, s, map[string]procfleet.Host{first.AgentID: h})
		equal(t, "hosts", hostWalk(ctx, t, s, 1), []procfleet.Host{h, busy})
	}
}

// hostPagesAfterStepBack checks a host whose presence expired while the store's clock
// was ahead, and whose agent announces itself after the clock was corrected.
func hostPagesAfterStepBack(ctx context.Context, t T, s Subject) {
	h, busy := host(0, 1), host(0, 2)
	announce(ctx, t, s, announcement(h, "a"))
	s.Advance(taskstore.PresenceTTL + time.Second)
	announce(ctx, t, s, announcement(busy, "i")) // Announce may remove expired presences
	s.Advance(-taskstore.PresenceTTL - time.Second)
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "hosts", hostWalk(ctx, t, s, 1), []procfleet.Host{h, busy})
}

func sinceAfterAnother(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"), farewell(h, "a"), announcement(h, "b"))
	mustBeSince(t, presence(ctx, t, s, h), "b", time.Time{})
	announce(ctx, t, s, farewell(h, "b"), announcement(h, "a"))
	mustBeSince(t, presence(ctx, t, s, h), "a", time.Time{})
}

func instanceForgotten(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "instance", presence(ctx, t, s, h).Instance, "a")
	s.Advance(taskstore.PresenceTTL + taskstore.InstanceMemory + time.Second)
	announce(ctx, t, s, announcement(h, "a"))
	mustBeSince(t, presence(ctx, t, s, h), "a", time.Time{})
}

func conflictABA(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	for i, step := range []struct {
		instance string
		conflict bool
	}{{"a", false}, {"a", false}, {"b", false}, {"b", false}, {"a", true}, {"a", true}, {"b", true}, {"a", true}} {
		announce(ctx, t, s, announcement(h, step.instance))
		p := presence(ctx, t, s, h)
		if p.Conflict != step.conflict || p.Instance != step.instance {
			t.Errorf("step %d: instance %s, conflict %v; want %s, %v", i, p.Instance, p.Conflict, step.instance, step.conflict)
		}
	}
	// If three agents announce the same host in turn, the host is in conflict too.
	g := host(0, 2)
	for _, instance := range []string{"a", "b", "c", "a"} {
		announce(ctx, t, s, announcement(g, instance))
	}
	equal(t, "conflict of three", presence(ctx, t, s, g).Conflict, true)
	announce(ctx, t, s, announcement(host(0, 3), "a"))
	equal(t, "conflict of another host", presence(ctx, t, s, host(0, 3)).Conflict, false)
}

func conflictEnds(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"), announcement(h, "b"), announcement(h, "a"))
	s.Advance(taskstore.PresenceTTL / 2)
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "conflict while both live", presence(ctx, t, s, h).Conflict, true)
	s.Advance(taskstore.PresenceTTL/2 + time.Second)
	equal(t, "conflict after one is silent", presence(ctx, t, s, h).Conflict, false)
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "conflict when the other speaks", presence(ctx, t, s, h).Conflict, false)
}

func noConflictWithDead(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"), announcement(h, "b"))
	s.Advance(taskstore.PresenceTTL + time.Second)
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "conflict", presence(ctx, t, s, h).Conflict, false)

	// No conflict even though agent b is live: agent a was silent for PresenceTTL.
	g := host(0, 2)
	announce(ctx, t, s, announcement(g, "a"), announcement(g, "b"))
	s.Advance(taskstore.PresenceTTL / 2)
	announce(ctx, t, s, announcement(g, "b"))
	s.Advance(taskstore.PresenceTTL/2 + time.Second)
	announce(ctx, t, s, announcement(g, "a"))
	equal(t, "conflict with one that was silent for too long", presence(ctx, t, s, g).Conflict, false)
}

func noConflictWithGone(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	for range 2 {
		for _, instance := range []string{"a", "b"} {
			announce(ctx, t, s, announcement(h, instance))
			equal(t, "conflict", presence(ctx, t, s, h).Conflict, false)
			announce(ctx, t, s, farewell(h, instance))
		}
	}
	// Agent a left and returned while agent b was live: only a announced itself after the
	// other, which is no conflict.
	announce(ctx, t, s, announcement(h, "a"), farewell(h, "a"), announcement(h, "b"), announcement(h, "a"))
	equal(t, "conflict when the first came back", presence(ctx, t, s, h).Conflict, false)
	announce(ctx, t, s, announcement(h, "b"))
	equal(t, "conflict when the second goes on", presence(ctx, t, s, h).Conflict, true)
}

func conflictEndsByLeaving(ctx context.Context, t T, s Subject) {
	for i, goes := range []string{"a", "b"} { // the last and the second to last agent to announce itself
		h, stays := host(0, i), "b"
		if goes == "b" {
			stays = "a"
		}
		announce(ctx, t, s, announcement(h, "a"), announcement(h, "b"), announcement(h, "a"))
		equal(t, "conflict", presence(ctx, t, s, h).Conflict, true)
		announce(ctx, t, s, farewell(h, goes), announcement(h, stays))
		p := presence(ctx, t, s, h)
		if p.Instance != stays || p.Conflict {
			t.Errorf("after %s left: instance %s, conflict %v", goes, p.Instance, p.Conflict)
		}
	}
	// One of three agents in conflict left: the other two are still in conflict.
	h := host(0, 3)
	announce(ctx, t, s, announcement(h, "a"), announcement(h, "b"), announcement(h, "c"), announcement(h, "a"), farewell(h, "b"))
	equal(t, "conflict when one of three left", presence(ctx, t, s, h).Conflict, true)
}

func leavingEnds(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "a"))
	bye := farewell(h, "a")
	announce(ctx, t, s, bye, bye)
	equal(t, "presence", presence(ctx, t, s, h), taskstore.Presence{})
	resolved(ctx, t, s, map[string]procfleet.Host{bye.AgentID: {}})
	equal(t, "hosts", hostWalk(ctx, t, s, 10), []procfleet.Host{})
	announce(ctx, t, s, announcement(h, "a"))
	equal(t, "instance after it came back", presence(ctx, t, s, h).Instance, "a")
}

func formerLeaves(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	bye := farewell(h, "a")
	announce(ctx, t, s, farewell(h, "unheard of"), announcement(h, "a"), announcement(h, "b"), bye, farewell(h, "unheard of"))
	p := presence(ctx, t, s, h)
	if p.Instance != "b" || p.Conflict {
		t.Errorf("after the former instance left: %+v", p)
	}
	resolved(ctx, t, s, map[string]procfleet.Host{bye.AgentID: h})
}

func resolved(ctx context.Context, t T, s taskstore.Store, want map[string]procfleet.Host) {
	t.Helper()
	for id, h := range want {
		got, err := s.Resolve(ctx, []string{id})
		must(t, err, "resolve")
		equal(t, "host of "+id, got, []procfleet.Host{h})
	}
}

func agentsResolve(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(7, 1)
	nameless := announcement(host(0, 3), "i")
	nameless.AgentID = ""
	announce(ctx, t, s, announcement(a, "i"), announcement(b, "i"), nameless)
	idA, idB := announcement(a, "").AgentID, announcement(b, "").AgentID
	got, err := s.Resolve(ctx, []string{idB, "unheard of", "", idA, idB})
	must(t, err, "resolve")
	equal(t, "hosts", got, []procfleet.Host{b, {}, {}, a, b})
	// The agent moves to another address.
	moved := announcement(host(0, 9), "i")
	moved.AgentID = idA
	announce(ctx, t, s, farewell(a, "i"), moved)
	resolved(ctx, t, s, map[string]procfleet.Host{idA: host(0, 9)})
	// The agent of a host gets another id.
	renamed := announcement(b, "i2")
	renamed.AgentID = "new"
	announce(ctx, t, s, renamed)
	resolved(ctx, t, s, map[string]procfleet.Host{"new": b, idB: {}})
}

// claims fails the check unless exactly the hosts in want claim the agent id.
func claims(ctx context.Context, t T, s taskstore.Store, id string, want ...procfleet.Host) {
	t.Helper()
	got, err := s.Claimants(ctx, []string{"unheard of", id, ""})
	must(t, err, "claimants")
	if len(got) != 3 || len(got[0]) > 0 || len(got[2]) > 0 || !slices.Equal(got[1], want) {
		t.Errorf("claimants of nothing, %s and nothing: %v, want %v", id, got, want)
	}
}

func rivalsResolveNowhere(ctx context.Context, t T, s Subject) {
	first, near, far := host(0, 1), host(0, 2), host(7, 1)
	const id = "claimed: {id} 1"
	claimed := func(h procfleet.Host) taskstore.Announcement {
		a := announcement(h, "i")
		a.AgentID = id
		return a
	}
	gone := func(h procfleet.Host) taskstore.Announcement {
		a := claimed(h)
		a.Leaving = true
		return a
	}
	claims(ctx, t, s, id)
	for _, claimant := range []procfleet.Host{near, far} {
		announce(ctx, t, s, claimed(first))
		claims(ctx, t, s, id, first)
		announce(ctx, t, s, claimed(claimant))
		for range 2 { // independent of the order of the announcements
			resolved(ctx, t, s, map[string]procfleet.Host{id: {}})
			claims(ctx, t, s, id, first, claimant)
			announce(ctx, t, s, claimed(first))
		}
		announce(ctx, t, s, gone(claimant))
		resolved(ctx, t, s, map[string]procfleet.Host{id: first})
		announce(ctx, t, s, claimed(claimant), gone(first))
		resolved(ctx, t, s, map[string]procfleet.Host{id: claimant})
		// A host whose agent announces another id is no longer a claimant of id.
		announce(ctx, t, s, claimed(first), announcement(claimant, "i"))
		resolved(ctx, t, s, map[string]procfleet.Host{id: first})
		announce(ctx, t, s, claimed(claimant), announcement(first, "i"))
		claims(ctx, t, s, id, claimant)
		announce(ctx, t, s, gone(claimant), gone(first))
		claims(ctx, t, s, id)
	}
	announce(ctx, t, s, claimed(first), claimed(near), claimed(far))
	claims(ctx, t, s, id, first, near, far)
	s.Advance(taskstore.PresenceTTL - 10*time.Second)
	announce(ctx, t, s, claimed(near))
	s.Advance(11 * time.Second)
	resolved(ctx, t, s, map[string]procfleet.Host{id: near})
	for i := range taskstore.MaxClaimants + 4 {
		announce(ctx, t, s, claimed(host(0, i+1)))
	}
	resolved(ctx, t, s, map[string]procfleet.Host{id: {}})
}

func silentDoNotResolve(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	announce(ctx, t, s, announcement(h, "i"))
	s.Advance(taskstore.PresenceTTL + time.Second)
	resolved(ctx, t, s, map[string]procfleet.Host{announcement(h, "").AgentID: {}})
}

func hostWalk(ctx context.Context, t T, s taskstore.Store, limit int) []procfleet.Host {
	t.Helper()
	var hosts []procfleet.Host
	after := procfleet.Host{}
	for {
		page, err := s.HostPage(ctx, after, limit)
		must(t, err, "host page")
		if len(page) > limit {
			t.Fatalf("a page of at most %d has %d hosts", limit, len(page))
		}
		for _, p := range page {
			hosts = append(hosts, p.Host)
			after = p.Host
		}
		if len(page) < limit {
			return hosts
		}
		if len(hosts) > 10_000 {
			t.Fatalf("the walk over all hosts does not end")
		}
	}
}

func hostPagesInOrder(ctx context.Context, t T, s Subject) {
	var want []procfleet.Host
	// Hosts sort by numeric cloud area, then by address text.
	for _, text := range []string{
		"0:10.0.0.1", "0:10.0.0.10", "0:10.0.0.2", "0:9.9.9.9", "0:fd00::1", "0:fd00::1:0", "2:10.0.0.1", "2:2001:db8::1",
		"10:10.0.0.1", "300:::1", "5000000000:10.0.0.1",
	} {
		h, err := procfleet.ParseHost(text)
		must(t, err, "parse host")
		want = append(want, h)
	}
	for i := range want {
		announce(ctx, t, s, announcement(want[(i*7)%len(want)], fmt.Sprintf("i%d", i)))
	}
	for _, limit := range []int{1, 2, 5, 1000} {
		equal(t, "hosts", hostWalk(ctx, t, s, limit), want)
	}
	// HostPage may start after a host without a live agent.
	page, err := s.HostPage(ctx, host(1, 0), 1)
	must(t, err, "host page")
	if len(page) != 1 || page[0].Host != want[6] {
		t.Errorf("page after an absent host is %+v", page)
	}
	if len(page) == 1 {
		equal(t, "presence on a page", page[0], presence(ctx, t, s, want[6]))
	}
}

func hostPagesLive(ctx context.Context, t T, s Subject) {
	for i := range 20 {
		announce(ctx, t, s, announcement(host(0, i), "i"))
	}
	s.Advance(taskstore.PresenceTTL / 2)
	announce(ctx, t, s, announcement(host(0, 19), "i"), announcement(host(0, 3), "i"))
	s.Advance(taskstore.PresenceTTL/2 + time.Second)
	equal(t, "live hosts", hostWalk(ctx, t, s, 1), []procfleet.Host{host(0, 19), host(0, 3)})
}
