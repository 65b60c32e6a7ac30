package redisstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
)

func TestHostsThatAreGoneLeaveNothingInTheEnd(t *testing.T) {
	t.Parallel()
	server := redistest.BuildClock(t).Start(t)
	s := openOn(t, server)
	say := func(addr string, leaving bool) {
		t.Helper()
		h, err := procfleet.NewHost(0, addr)
		if err != nil {
			t.Fatal(err)
		}
		as := []taskstore.Announcement{{Host: h, AgentID: "agent-" + addr, Instance: "i", Leaving: leaving}}
		if err := s.Announce(t.Context(), as); err != nil {
			t.Fatal(err)
		}
	}
	c := server.Client(t)
	// expect compares how many hosts each key has.
	expect := func(when string, hosts, live, gone int64) {
		t.Helper()
		for key, want := range map[string]int64{"hosts": hosts, "agents": live, "live": live, "order": live, "gone": gone} {
			key = "pf:{presence:0}:" + key
			count := c.ZCard
			if kind := c.Type(t.Context(), key).Val(); kind == "hash" {
				count = c.HLen
			}
			if got, err := count(t.Context(), key).Result(); got != want || err != nil {
				t.Errorf("%s: %s has %d entries, %v; want %d", when, key, got, err, want)
			}
		}
	}
	say("10.0.0.1", false)
	say("10.0.0.2", false)
	say("10.0.0.2", true)
	expect("one left", 2, 1, 1)
	server.Advance(t, taskstore.PresenceTTL)
	say("10.0.0.3", false)
	expect("another was silent", 3, 1, 2)
	say("10.0.0.2", false)
	expect("who left is back", 3, 2, 1)
	server.Advance(t, taskstore.InstanceMemory)
	say("10.0.0.3", false)
	expect("long after", 2, 1, 1)
	server.Advance(t, taskstore.InstanceMemory+time.Hour)
	if left := redistest.Keys(t, c, "*"); !slices.Equal(left, []string{"pf:{index}:format"}) {
		t.Errorf("without an agent there are the keys %v, want only the format", left)
	}
}
