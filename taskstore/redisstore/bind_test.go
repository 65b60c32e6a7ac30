package redisstore_test

import (
	"slices"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
)

func hostOf(t *testing.T, text string) procfleet.Host {
	t.Helper()
	h, err := procfleet.ParseHost(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestBoundAgentIDs(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisstore.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr})
	a, b := hostOf(t, "0:10.0.0.1"), hostOf(t, "7:10.0.0.1")
	none := procfleet.Host{}
	bind := func(id string, h procfleet.Host) {
		t.Helper()
		if err := s.Bind(t.Context(), []taskstore.AgentBinding{{AgentID: id, Host: h}}); err != nil {
			t.Fatal(err)
		}
	}
	announce := func(h procfleet.Host, id string) {
		t.Helper()
		if err := s.Announce(t.Context(), []taskstore.Announcement{{Host: h, AgentID: id, Instance: "i"}}); err != nil {
			t.Fatal(err)
		}
	}
	resolves := func(when string, want map[string]procfleet.Host) {
		t.Helper()
		for id, h := range want {
			if got, err := s.Resolve(t.Context(), []string{"", id}); err != nil || !slices.Equal(got, []procfleet.Host{none, h}) {
				t.Errorf("%s: %q is %v, %v; want %v", when, id, got, err, h)
			}
		}
	}
	bind("x", a)
	bind(`"y"`, a)
	resolves("bound", map[string]procfleet.Host{"x": a, `"y"`: a, "z": none})
	announce(a, "")
	resolves("the agent has no id", map[string]procfleet.Host{"x": a, `"y"`: a})
	announce(b, "x")
	resolves("a live agent says otherwise", map[string]procfleet.Host{"x": b})
	announce(b, "z")
	resolves("it is called otherwise again", map[string]procfleet.Host{"x": a, "z": b})
	announce(a, "x")
	resolves("the agent has one of the ids", map[string]procfleet.Host{"x": a, `"y"`: none})
	bind("x", b)
	announce(a, "w")
	resolves("bound to another cloud area", map[string]procfleet.Host{"x": b, "w": a, "z": b})
	announce(b, "z")
	resolves("the agent goes on", map[string]procfleet.Host{"x": b, "z": b})
	announce(b, "v")
	resolves("the agent got another id", map[string]procfleet.Host{"x": none, "z": none, "v": b})
	for _, bad := range []taskstore.AgentBinding{{AgentID: "x"}, {Host: a}, {AgentID: string(make([]byte, 2000)), Host: a}} {
		if err := s.Bind(t.Context(), []taskstore.AgentBinding{{AgentID: "good", Host: a}, bad}); err == nil {
			t.Errorf("bound: %.40q", bad)
		}
	}
	resolves("one of a call was refused", map[string]procfleet.Host{"good": none})
}
