//go:build linux

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// shownProcess is a reported process in the native API.
type shownProcess struct {
	Name     string `json:"name"`
	Reported *struct {
		Desired    string    `json:"desired"`
		ReportedAt time.Time `json:"reported_at"`
		Status     struct {
			Running bool `json:"running"`
			PID     int  `json:"pid"`
		} `json:"status"`
	} `json:"reported"`
}

// reported returns the reported processes of the tests' namespace.
func (c *client) reported() map[string]shownProcess {
	c.t.Helper()
	var page struct {
		Processes []shownProcess `json:"processes"`
	}
	c.get("/v1/processes?namespace=e2e", &page)
	all := map[string]shownProcess{}
	for _, p := range page.Processes {
		if p.Reported != nil {
			all[p.Name] = p
		}
	}
	return all
}

// waitReported waits until a process is reported as wanted, and running with the
// pid if that is not 0. It returns the time of the report.
func (c *client) waitReported(p proc, desired string, pid func() int) (at time.Time) {
	c.t.Helper()
	testenv.Eventually(c.t, startTimeout, func() bool {
		shown, ok := c.reported()[p.name]
		if !ok {
			return false
		}
		r, want := shown.Reported, pid()
		at = r.ReportedAt
		return r.Desired == desired && r.Status.PID == want && r.Status.Running == (want != 0)
	}, p.name+" is reported "+desired)
	return at
}

func gone() int { return 0 }

// TestReportsFollowTheHost checks the reports of processes that die,
// are stopped and are released, also after the agent was killed.
func TestReportsFollowTheHost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	host := f.hosts(1)
	all := f.procs.grid(host, 3, "reported")
	supervised, stopped, released := all[0], all[1], all[2]
	never := f.procs.new(host[0], "neverstarted")
	c.wait(c.submit(operation("start", all)))
	for _, p := range all {
		c.waitReported(p, "up", p.pid)
	}

	first := supervised.pid()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.waitReported(supervised, "up", func() int {
		if pid := supervised.pid(); pid != first && pid != 0 {
			return pid
		}
		return -1 // not restarted yet
	})
	c.wait(c.submit(operation("stop", []proc{stopped, never})))
	c.waitReported(stopped, "down", gone)
	c.waitReported(never, "down", gone)
	c.wait(c.submit(operation("release", []proc{released})))
	c.waitReported(released, "none", released.pid)
	if err := syscall.Kill(released.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	before := c.waitReported(released, "none", gone)

	a := f.agents[0]
	a.child.Kill()
	a.start()
	a.waitReady()
	testenv.Eventually(t, startTimeout, func() bool {
		p, ok := c.reported()[stopped.name]
		return ok && p.Reported.ReportedAt.After(before)
	}, "the new agent process reports")
	c.waitReported(supervised, "up", supervised.pid)
	for _, p := range []proc{stopped, never} {
		if r := c.reported()[p.name].Reported; r == nil || r.Desired != "down" || r.Status.Running {
			t.Errorf("%s is missing in reports after the agent was killed: %+v", p.name, r)
		}
	}
	c.wait(c.submit(operation("start", []proc{stopped})))
	c.waitReported(stopped, "up", stopped.pid)
	if out := a.child.Output(); strings.Contains(out, "panic") {
		t.Error(out)
	}
}
