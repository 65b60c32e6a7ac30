package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

func newTestAsk(t *testing.T) (*hostAsk, *AskTiming, time.Time) {
	t.Helper()
	host, err := procfleet.NewHost(0, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	timing := AskTiming{}.withDefaults()
	return newHostAsk(0, host), &timing, time.Unix(1_000_000, 0)
}

func TestSilenceIsAskedTwiceMoreAndThenWaitedOut(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestAsk(t)
	now := start
	for _, want := range []time.Duration{2 * time.Second, 5 * time.Second} {
		h.asked(now, now.Add(timing.AcceptWindow), timing)
		now = h.again
		if got := now.Sub(start); got != want || h.silent(now, timing) {
			t.Fatalf("asked again after %v (silent %v), want %v", got, h.silent(now, timing), want)
		}
	}
	h.asked(now, now.Add(timing.AcceptWindow), timing)
	if h.silent(h.acceptBefore, timing) {
		t.Error("given up while the agent may still accept")
	}
	if now = h.again; !h.silent(now, timing) || now.Sub(start) != 15500*time.Millisecond {
		t.Errorf("given up after %v", now.Sub(start))
	}
}

func TestHowLongAHostMayHaveNobody(t *testing.T) {
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
		{name: "agent said that it goes away", stopping: true, want: 45 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, timing, start := newTestAsk(t)
			h.fresh = tt.fresh
			if tt.stopping && !h.wasRefused(agentproto.RefusedStopping, start, timing) {
				t.Fatal("not asked again")
			}
			var reconnected time.Time
			if tt.reconnected > 0 {
				reconnected = start.Add(-tt.reconnected)
			}
			now := start
			for h.hadNobody(now, reconnected, timing) {
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
	h, _, now := newTestAsk(t)
	one := taskstore.Presence{Announcement: taskstore.Announcement{Host: h.host, Instance: "one"}, SeenAt: now}
	two := one
	two.Instance = "two"
	if h.seen(&one) || h.instance != "one" || !h.fresh {
		t.Error("first instance counts as a new one")
	}
	if h.seen(&taskstore.Presence{}) || h.instance != "one" || h.fresh {
		t.Error("without presence a retry must go to the instance first asked")
	}
	if !h.seen(&two) || h.instance != "two" {
		t.Error("second instance does not count as new")
	}
}

func TestTheClockPrefersPreciseLooks(t *testing.T) {
	t.Parallel()
	c := clock{}
	local := time.Now()
	good := look{local: local, store: local.Add(time.Hour), error: time.Millisecond}
	c.learn(good)
	c.learn(look{local: local.Add(time.Second), store: local, error: time.Second})
	if c.look != good {
		t.Error("a look with a long round trip replaced a precise one")
	}
	if off := time.Until(c.now()); off < time.Hour-time.Minute {
		t.Errorf("clock is %v ahead, the store's an hour", off)
	}
	old := look{local: local.Add(2 * lookAge), store: local, error: time.Second}
	c.learn(old)
	if c.look != old {
		t.Error("an old look was kept for ever")
	}
}

func TestConfigNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Limits: Limits{Parked: -1}, Timing: Timing{Ask: AskTiming{AcceptWindow: time.Minute}}})
	if err == nil {
		t.Fatal("an empty Config is accepted")
	}
	for _, field := range []string{"Conn", "Bus", "Store", "Parked", "AcceptWindow"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

func TestAnAgentThatLeavesInGoodOrderKeepsItsGrace(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestAsk(t)
	h.fresh = true
	if !h.hadNobody(start, time.Time{}, timing) {
		t.Fatal("not asked again")
	}
	h.fresh = false // its presence ended
	if now := start.Add(timing.Grace - time.Second); !h.hadNobody(now, time.Time{}, timing) {
		t.Errorf("given up %v after it left", now.Sub(start))
	}
	if now := start.Add(timing.Grace); h.hadNobody(now, time.Time{}, timing) {
		t.Error("the grace does not end")
	}
}

func TestAnAgentThatRestartsAgainAndAgainIsGivenUp(t *testing.T) {
	t.Parallel()
	h, timing, start := newTestAsk(t)
	h.fresh = true
	now := start
	for h.hadNobody(now, time.Time{}, timing) && h.wasRefused(agentproto.RefusedStopping, now.Add(time.Second), timing) {
		if now = now.Add(2 * time.Second); now.Sub(start) > 2*timing.Grace {
			t.Fatal("the grace begins anew each time")
		}
	}
	h.nextPart()
	if !h.wasRefused(agentproto.RefusedStopping, now, timing) {
		t.Error("the next part has no grace of its own")
	}
}

func TestAnInstanceIsNewToAHostThatWasAskedWithoutOne(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		since time.Duration // from the first request
		want  bool
	}{{"came after the request", time.Second, true}, {"was there before", -time.Second, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, timing, start := newTestAsk(t)
			p := taskstore.Presence{
				Announcement: taskstore.Announcement{Host: h.host, Instance: "one"}, Since: start.Add(tt.since),
			}
			h.asked(start, start.Add(timing.AcceptWindow), timing)
			if got := h.seen(&p); got != tt.want {
				t.Errorf("replaced is %v", got)
			}
		})
	}
}
