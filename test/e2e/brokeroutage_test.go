//go:build linux

package e2e

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// hostEvents counts the events of a kind by host and process.
func hostEvents(t *testing.T, js jetstream.JetStream) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, data := range contents(t, js, "PROCFLEET_HOST_EVENTS") {
		var event struct{ Kind, Host, Name string }
		if err := json.Unmarshal(data, &event); err != nil {
			t.Fatal(err)
		}
		counts[event.Kind+" "+event.Host+" "+event.Name]++
	}
	return counts
}

func restartOf(p proc) string { return "restarted " + p.host + " " + p.name }

// outage is one kind of outage of NATS. begin starts the outage and kills the given running
// processes; end ends the outage.
type outage struct{ begin, end func(all []proc) }

func (f *fleet) outages(c *client) map[string]outage {
	die := func(all []proc) {
		for _, p := range all {
			p.kill(f.t)
		}
	}
	start := func([]proc) {
		back := time.Now()
		f.broker.Start()
		f.waitAnnounced(c, len(f.agents), back)
	}
	unheard := func(a *agent) int { return strings.Count(a.child.Output(), "events not acknowledged, retrying") }
	before := map[*agent]int{}
	return map[string]outage{
		"while":  {func(all []proc) { f.broker.Kill(); die(all) }, start},
		"before": {func(all []proc) { die(all); f.broker.Kill() }, start},
		"telling": {func(all []proc) {
			die(all)
			js := f.jetStream()
			testenv.Eventually(f.t, finishTimeout, func() bool { return hostEvents(f.t, js)[restartOf(all[0])] > 0 }, "a restart is reported")
			f.broker.Kill()
		}, start},
		"hanging": {func(all []proc) {
			for _, a := range f.agents {
				before[a] = unheard(a)
			}
			f.broker.child.Freeze(f.t)
			die(all)
		}, func([]proc) {
			for _, a := range f.agents { // waits until each agent has sent its events and repeated them
				testenv.Eventually(f.t, finishTimeout, func() bool { return unheard(a) > before[a] }, a.host()+" sends events again that have no receipt")
			}
			f.broker.child.Signal(syscall.SIGCONT)
		}},
	}
}

// TestABrokerOutageDuplicatesNothing kills managed processes at four moments: before NATS
// stops, after it stopped, before it stops while agents are reporting restarts, and while it
// hangs. During each outage agents must restart the processes. After it they must announce
// the same hosts again without intervention, and each restart must be reported exactly once.
func TestABrokerOutageDuplicatesNothing(t *testing.T) {
	t.Parallel()
	const hosts, each = 4, 3
	f := newFleet(t, hosts)
	_, c := f.dispatcher("", "--submissions=false", "--slack", "10m")
	f.worker("")
	f.waitListed(c, hosts)
	var everything []proc
	for name, away := range f.outages(c) {
		all := f.procs.grid(f.hosts(hosts), each, name)
		everything = append(everything, all...)
		c.wait(c.persist(name, operation("start", all))) // the dispatcher may not have its connection back yet
		away.begin(all)
		for _, p := range all {
			testenv.Eventually(t, finishTimeout, func() bool { return p.starts() == 2 && p.pid() != 0 }, p.name+" runs again")
		}
		away.end(all)
		js := f.jetStream()
		for _, p := range all {
			testenv.Eventually(t, finishTimeout, func() bool { return hostEvents(t, js)[restartOf(p)] > 0 }, "the restart of "+p.name+" on "+p.host+" is reported")
		}
	}
	events := hostEvents(t, f.jetStream())
	live := programs()
	for _, p := range everything {
		if n := events[restartOf(p)]; n != 1 || p.starts() != 2 || len(live.of(p)) != 1 {
			t.Errorf("%s on %s: %d events, started %d times, runs as %v", p.name, p.host, n, p.starts(), live.of(p))
		}
		delete(events, restartOf(p))
		delete(events, "pid_changed "+p.host+" "+p.name) // on a busy machine the agent also sees the parent of the daemon
	}
	if len(events) != 0 {
		t.Errorf("unexpected events %v", events)
	}
	f.killAll(c, everything)
}

// waitAnnounced waits until n hosts have announced themselves after a time, each by one
// agent.
func (f *fleet) waitAnnounced(c *client, n int, after time.Time) {
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
