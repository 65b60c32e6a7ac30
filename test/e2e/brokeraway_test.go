//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// hostEvents counts what agents told of a kind, by host and process.
func hostEvents(t *testing.T, js jetstream.JetStream) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, data := range contents(t, js, "PROCFLEET_HOST_EVENTS") {
		var told struct{ Kind, Host, Name string }
		if err := json.Unmarshal(data, &told); err != nil {
			t.Fatal(err)
		}
		counts[told.Kind+" "+told.Host+" "+told.Name]++
	}
	return counts
}

func restartsOf(p proc) string { return "restarted " + p.host + " " + p.name }

// TestABrokerThatRestartsDoublesNothing has processes die while NATS is away, just
// before it goes, and while agents tell of the first of them. Agents keep them
// alive meanwhile, tell of each restart once, and are announced again as the
// hosts that they were; nobody has to help.
func TestABrokerThatRestartsDoublesNothing(t *testing.T) {
	t.Parallel()
	const hosts, each = 4, 3
	f := newFleet(t, hosts)
	_, c := f.dispatcher("", "--submissions=false", "--slack", "10m")
	f.worker("")
	f.waitKnown(c, hosts)
	var js jetstream.JetStream // of the broker as it was started last
	connect := func() {
		var err error
		if js, err = jetstream.New(f.connect()); err != nil {
			t.Fatal(err)
		}
	}
	connect()
	die := func(all []proc) (pids []int) {
		for _, p := range all {
			pids = append(pids, p.kill(t))
		}
		return pids
	}
	var everything []proc
	for when, first := range map[string]func(all []proc) []int{
		"while": func(all []proc) []int { f.broker.Kill(); return die(all) },
		"before": func(all []proc) []int {
			pids := die(all)
			f.broker.Kill()
			return pids
		},
		"telling": func(all []proc) []int {
			pids := die(all)
			testenv.Eventually(t, finishTimeout, func() bool { return hostEvents(t, js)[restartsOf(all[0])] > 0 }, "a restart is told")
			f.broker.Kill()
			return pids
		},
	} {
		all := f.procs.grid(f.hosts(hosts), each, when)
		everything = append(everything, all...)
		c.wait(c.submit(operation("start", all)))
		pids := first(all)
		for i, p := range all {
			p.comesBack(t, pids[i])
		}
		back := time.Now()
		f.broker.Start()
		connect()
		f.waitSeen(c, hosts, back)
		for _, p := range all {
			testenv.Eventually(t, finishTimeout, func() bool { return hostEvents(t, js)[restartsOf(p)] > 0 }, fmt.Sprintf("the restart of %s on %s is told", p.name, p.host))
		}
	}
	events := hostEvents(t, js)
	for _, p := range everything {
		if n := events[restartsOf(p)]; n != 1 || p.starts() != 2 || len(p.running()) != 1 {
			t.Errorf("%s on %s: told %d times, started %d times, runs as %v", p.name, p.host, n, p.starts(), p.running())
		}
		delete(events, restartsOf(p))
	}
	if len(events) != 0 {
		t.Errorf("agents told of %v as well", events)
	}
	f.killAll(c, everything)
}

// waitSeen waits until so many hosts were announced after a moment, each by one
// agent.
func (f *fleet) waitSeen(c *client, n int, after time.Time) {
	f.t.Helper()
	testenv.Eventually(f.t, finishTimeout, func() bool {
		var page struct {
			Hosts []struct {
				Host     string
				SeenAt   time.Time `json:"seen_at"`
				Conflict bool
			}
		}
		c.get("/v1/hosts?limit=1000", &page)
		seen := 0
		for _, h := range page.Hosts {
			if h.Conflict {
				f.t.Errorf("two agents claim %s", h.Host)
			}
			if h.SeenAt.After(after) {
				seen++
			}
		}
		return seen == n && len(page.Hosts) == n
	}, "all agents are announced again")
}
