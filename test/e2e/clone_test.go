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

// clone is another agent with the identity of a, and a copy of its data folder.
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

// TestTwoAgentsWithOneDataFolderRunNoCommandTwice: a clone of a whole disk,
// which nothing on the host tells from the original, has its identity, instance
// and journal. From its start until one of the two is gone nothing is changed.
func TestTwoAgentsWithOneDataFolderRunNoCommandTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitKnown(c, 1)
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
		t.Error("both agents took commands before they noticed each other")
	}
	p := f.procs.new(original.host(), "refused")
	for range 4 {
		r := c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0]
		if !strings.Contains(r.Message, "two agents claim host") || p.starts() != 0 {
			t.Errorf("a start while both live: %+v, ran %d times", r, p.starts())
		}
	}
	if r := c.results(c.wait(c.submit(operation("status", []proc{before}))).ID, 1)[0]; r.Status == nil || !r.Status.Running {
		t.Errorf("a status while both live: %+v", r)
	}
	c.eventOf(t, "two_agents", original.host())

	clone.stop()
	testenv.Eventually(t, startTimeout, func() bool {
		return c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0].Code == 0
	}, "the original is alone")
	if p.starts() != 1 || before.starts() != 1 {
		t.Errorf("ran %d and %d times", p.starts(), before.starts())
	}

	// A restart is no clone, in whatever way the agent before it ended.
	for range 2 {
		original.child.Kill()
		original.start()
		original.waitReady()
		if r := c.results(c.wait(c.submit(operation("start", []proc{p}))).ID, 1)[0]; r.Code != 828 {
			t.Errorf("after a restart: %+v", r)
		}
	}
}

// TestACopiedDataFolderDoesNotDoWhatItsJournalSays: an agent that starts on a
// copy, here of an operation that was accepted and did not end, begins anew and
// says so.
func TestACopiedDataFolderDoesNotDoWhatItsJournalSays(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitKnown(c, 1)
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
		t.Errorf("the copy keeps alive what the original supervised: %+v, started %d times", r, p.starts())
	}
	aside, err := filepath.Glob(filepath.Join(copied.data, "journal.of-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("the journal that was set aside: %v, %v", aside, err)
	}
	if _, err := os.Stat(filepath.Join(copied.data, "journal")); errors.Is(err, fs.ErrNotExist) {
		t.Error("there is no new journal")
	}
	copied.stop()
	original.start()
	original.waitReady()
	testenv.Eventually(t, startTimeout, func() bool { return p.starts() == 2 }, "the original goes on to keep it alive")
}
