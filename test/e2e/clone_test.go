//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// clone returns another agent with the identity and a copy of the data folder of a.
func (a *agent) clone() *agent {
	a.fleet.t.Helper()
	c := &agent{fleet: a.fleet, ip: a.ip, identity: a.identity, data: tempFile(a.fleet.t, "copy")}
	if out, err := exec.Command("cp", "-a", a.data, c.data).CombinedOutput(); err != nil {
		a.fleet.t.Fatalf("copy the data folder: %v, %s", err, out)
	}
	return c
}

func (c *client) eventOf(t *testing.T, kind, host string) {
	t.Helper()
	var events json.RawMessage
	testenv.Eventually(t, startTimeout, func() bool {
		c.get("/v1/events?kind="+kind, &events)
		return strings.Contains(string(events), host)
	}, "there is an event "+kind+" of host "+host)
}

// TestTwoAgentsWithOneDataFolderRunNoCommandTwice starts a clone of a whole disk,
// which has the same identity, instance and journal and is indistinguishable on the
// host. From its start until one of the two has stopped, nothing may change.
func TestTwoAgentsWithOneDataFolderRunNoCommandTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	original := f.agents[0]
	before := f.procs.new(original.host(), "before")
	c.wait(c.submit(operation("start", []proc{before})))
	if before.starts() != 1 {
		t.Fatalf("%d starts", before.starts())
	}
	clone := original.clone()
	if err := os.Remove(filepath.Join(clone.data, "machine")); err != nil { // as if it had its own inode
		t.Fatal(err)
	}
	clone.start()
	clone.child.WaitOutput(t, startTimeout, "a copy of this agent, with the same data folder and identity, accepts commands for host")
	if strings.Contains(clone.child.Output(), "accepting commands") {
		t.Error("both agents accepted commands before they detected each other")
	}
	p := f.procs.new(original.host(), "refused")
	for range 4 {
		r := c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0]
		if !strings.Contains(r.Message, "two agents claim host") || p.starts() != 0 {
			t.Errorf("a start while both run: %+v, ran %d times", r, p.starts())
		}
	}
	if r := c.results(c.wait(c.submit(operation("status", []proc{before}))).ID, 1)[0]; r.Status == nil || !r.Status.Running {
		t.Errorf("a status while both run: %+v", r)
	}
	c.eventOf(t, "two_agents", original.host())

	clone.stop()
	testenv.Eventually(t, startTimeout, func() bool {
		return c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0].Code == 0
	}, "the original is alone")
	if p.starts() != 1 || before.starts() != 1 {
		t.Errorf("ran %d and %d times", p.starts(), before.starts())
	}

	// A restart is no clone, however the previous agent ended.
	for range 2 {
		original.child.Kill()
		original.start()
		original.waitReady()
		if r := c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0]; r.Code != 828 {
			t.Errorf("after a restart: %+v", r)
		}
	}
}

// TestACopiedJournalIsNotExecuted starts an agent on a copy whose
// journal has an accepted operation. The agent must begin with an empty journal and
// report it.
func TestACopiedJournalIsNotExecuted(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	original := f.agents[0]
	p := f.procs.new(original.host(), "kept")
	if done := c.wait(c.submit(operation("start", []proc{p}))); done.Counts["succeeded"] != 1 {
		t.Fatalf("the start: %v", done.Counts)
	}
	original.child.Kill()
	copied := original.clone()
	p.kill(t)
	copied.start()
	copied.waitReady()
	copied.child.WaitOutput(t, startTimeout, "it is a copy, or was restored from a backup")
	c.eventOf(t, "copied_folder", original.host())
	if r := c.results(c.wait(c.submit(operation("status", []proc{p}))).ID, 1)[0]; r.Status == nil || r.Status.Running || r.Status.Supervised || p.starts() != 1 {
		t.Errorf("the copy supervises a process of the original: %+v, started %d times", r, p.starts())
	}
	aside, err := filepath.Glob(filepath.Join(copied.data, "journal.of-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("renamed journal: %v, %v", aside, err)
	}
	if _, err := os.Stat(filepath.Join(copied.data, "journal")); errors.Is(err, fs.ErrNotExist) {
		t.Error("there is no new journal")
	}
	copied.stop()
	original.start()
	original.waitReady()
	testenv.Eventually(t, startTimeout, func() bool { return p.starts() == 2 }, "the original continues to supervise it")
}
