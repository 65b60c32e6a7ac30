package deliver

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

func newTestRequest(t *testing.T) (*hostRequest, *Timing, time.Time) {
	t.Helper()
	host, err := procfleet.NewHost(0, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	timing := Timing{}.WithDefaults()
	return newHostRequest(0, host), &timing, time.Unix(1_000_000, 0)
}

func TestAHostWithoutReplyGetsTwoMoreRequestsAndTheirTime(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestRequest(t)
	now := start
	for _, want := range []time.Duration{2 * time.Second, 5 * time.Second} {
		h.sent(now, now.Add(timing.AcceptWindow), timing)
		now = h.again
		if got := now.Sub(start); got != want || h.exhausted(now, timing) {
			t.Fatalf("asked again after %v (exhausted %v), want %v", got, h.exhausted(now, timing), want)
		}
	}
	h.sent(now, now.Add(timing.AcceptWindow), timing)
	if h.exhausted(h.acceptBefore, timing) {
		t.Error("given up while the agent may still accept")
	}
	if now = h.again; !h.exhausted(now, timing) || now.Sub(start) != 15500*time.Millisecond {
		t.Errorf("given up after %v", now.Sub(start))
	}
}

func TestHowLongAHostMayHaveNoResponders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		fresh       bool
		reconnected time.Duration // before the first try; 0 is never
		stopping    bool
		want        time.Duration
	}{
		{name: "no presence", want: time.Second},
		{name: "fresh presence", fresh: true, want: 45 * time.Second},
		{name: "worker just reconnected", reconnected: time.Second, want: 29 * time.Second},
		{name: "worker reconnected long ago", reconnected: time.Hour, want: time.Second},
		{name: "agent reported that it stops", stopping: true, want: 45 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, timing, start := newTestRequest(t)
			h.fresh = tt.fresh
			if tt.stopping && !h.wasRefused(agentproto.RefusedStopping, start, timing) {
				t.Fatal("not asked again")
			}
			var reconnected time.Time
			if tt.reconnected > 0 {
				reconnected = start.Add(-tt.reconnected)
			}
			now := start
			for h.hadNoResponders(now, reconnected, timing) {
				if !h.again.After(now) || h.again.Sub(now) > timing.GraceAgain {
					t.Fatalf("next try %v later", h.again.Sub(now))
				}
				now = h.again
			}
			if got := now.Sub(start); got != tt.want {
				t.Errorf("given up after %v, want %v", got, tt.want)
			}
		})
	}
}

func TestANewInstanceShows(t *testing.T) {
	t.Parallel()
	h, _, now := newTestRequest(t)
	one := taskstore.Presence{Announcement: taskstore.Announcement{Host: h.host, Instance: "one"}, SeenAt: now}
	two := one
	two.Instance = "two"
	if h.observe(&one) || h.instance != "one" || !h.fresh {
		t.Error("first instance counts as a new one")
	}
	if h.observe(&taskstore.Presence{}) || h.instance != "one" || h.fresh {
		t.Error("without presence a retry must go to the instance first asked")
	}
	if !h.observe(&two) || h.instance != "two" {
		t.Error("second instance does not count as new")
	}
}

func TestAnAgentThatLeavesInGoodOrderKeepsItsGrace(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestRequest(t)
	h.fresh = true
	if !h.hadNoResponders(start, time.Time{}, timing) {
		t.Fatal("not asked again")
	}
	h.fresh = false // its presence ended
	if now := start.Add(timing.Grace - time.Second); !h.hadNoResponders(now, time.Time{}, timing) {
		t.Errorf("given up %v after it left", now.Sub(start))
	}
	if now := start.Add(timing.Grace); h.hadNoResponders(now, time.Time{}, timing) {
		t.Error("the grace does not end")
	}
}

func TestAnAgentThatRestartsAgainAndAgainIsGivenUp(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestRequest(t)
	h.fresh = true
	now := start
	for h.hadNoResponders(now, time.Time{}, timing) && h.wasRefused(agentproto.RefusedStopping, now.Add(time.Second), timing) {
		if now = now.Add(2 * time.Second); now.Sub(start) > 2*timing.Grace {
			t.Fatal("the grace begins anew each time")
		}
	}
	h.nextPart()
	if !h.wasRefused(agentproto.RefusedStopping, now, timing) {
		t.Error("the next part has no grace of its own")
	}
}

func TestAnInstanceIsNewToAHostWithARequestWithoutOne(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		since time.Duration // from the first request
		want  bool
	}{{"came after the request", time.Second, true}, {"was there before", -time.Second, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, timing, start := newTestRequest(t)
			p := taskstore.Presence{
				Announcement: taskstore.Announcement{Host: h.host, Instance: "one"}, Since: start.Add(tt.since),
			}
			h.sent(start, start.Add(timing.AcceptWindow), timing)
			if got := h.observe(&p); got != tt.want {
				t.Errorf("replaced is %v", got)
			}
		})
	}
}
