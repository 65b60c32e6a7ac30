//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// up is the whole system in one process.
type up struct {
	t       *testing.T
	program string
	args    []string
	child   *testenv.Child
	c       *client
	data    string
}

func newUp(t *testing.T, extra ...string) *up {
	t.Helper()
	addr := testenv.FreeAddress(t)
	u := &up{t: t, program: testenv.BuildBinary(t, "./cmd/procfleet"), data: tempFile(t, "data")}
	u.args = append([]string{"up", "--http", addr, "--data", u.data}, extra...)
	u.c = &client{t: t, url: "http://" + addr}
	return u
}

// keys returns the keys that the system created at its first start.
func (u *up) keys() *keys { return &keys{u.t, filepath.Join(u.data, "fleet.key")} }

func (u *up) start() {
	u.t.Helper()
	u.child = testenv.StartChild(u.t, nil, u.program, u.args...)
	u.child.WaitHTTP(u.t, startTimeout, u.c.url+"/readyz")
}

// TestUpKilledInTheMiddleOfATask kills the system while start commands run. After a
// restart the task must finish, and no command may run twice.
func TestUpKilledInTheMiddleOfATask(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	all := procs.grid([]string{"0:127.0.0.1"}, 30, "up")
	id := u.c.submit(operation("start", all))
	testenv.Eventually(t, finishTimeout, func() bool {
		ran := 0
		for _, p := range all {
			ran += p.starts()
		}
		return ran >= 5
	}, "some start commands ran")
	u.child.Kill()
	u.start()
	u.c.wait(id)
	for _, r := range u.c.results(id, len(all)) {
		p := find(t, all, r)
		truth := r.State == "succeeded" && p.starts() == 1 && p.pid() != 0 ||
			r.State == "failed" && p.starts() == 0 && len(p.running()) == 0
		if !truth {
			t.Errorf("%s: %s %q, but %d starts and pid %d", r.Name, r.State, r.Message, p.starts(), p.pid())
		}
	}

	// Supervision continues: a killed process is restarted. The start of any
	// process may have been interrupted; a second start succeeds.
	victim := all[len(all)-1]
	u.c.wait(u.c.submit(operation("start", []proc{victim})))
	before := victim.pid()
	if before == 0 || len(victim.running()) != 1 {
		t.Fatalf("%s runs as %v after another start, its pid file names %d", victim.name, victim.running(), before)
	}
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, finishTimeout, func() bool { p := victim.pid(); return p != 0 && p != before }, "the killed process runs again")

	// Ctrl-C ends the system, but not the processes. After a restart the system
	// adopts them.
	u.child.Signal(syscall.SIGINT)
	if code := u.child.Wait(t, startTimeout); code != 0 {
		t.Errorf("Ctrl-C: exit code %d, want 0", code)
	}
	after := victim.pid()
	if after == 0 {
		t.Fatal("Ctrl-C took the supervised process with it")
	}
	u.start()
	status := u.c.submit(operation("status", []proc{victim}))
	u.c.wait(status)
	if r := u.c.results(status, 1)[0]; r.Status == nil || r.Status.PID != after || !r.Status.Supervised {
		t.Errorf("after another start: %+v, want pid %d, supervised", r.Status, after)
	}
	if end := u.c.wait(u.c.submit(operation("kill", all))); end.Counts["failed"] != 0 {
		t.Errorf("kill: %v", end.Counts)
	}
}

// TestDemoShowsARealProcessSurvive runs the first command of the README, whose end removes what it made.
func TestDemoShowsARealProcessSurvive(t *testing.T) {
	t.Parallel()
	u := newUp(t, "--demo=1s")
	u.child = testenv.StartChild(t, nil, u.program, u.args...)
	if first := u.child.WaitOutput(t, finishTimeout, u.c.url); !strings.Contains(first, "console: "+u.c.url+"/ui/") {
		t.Errorf("the first address is %q, want that of the console", first)
	}
	u.child.WaitOutput(t, finishTimeout, "held after 1 of 31 hosts: ")
	u.child.WaitOutput(t, finishTimeout, "runs the earlier release again")
	line := u.child.WaitOutput(t, finishTimeout, "restarted it")
	found := regexp.MustCompile(`pid (\d+)`).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("no new pid in %q", line)
	}
	exe, err := os.Readlink(filepath.Join("/proc", found[1], "exe"))
	if err != nil {
		t.Fatalf("the new pid %s is not a process: %v", found[1], err)
	}
	n, _ := strconv.Atoi(found[1])
	t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
	t.Logf("the service is %s", exe)
	u.child.WaitOutput(t, finishTimeout, "The demo is over")
	u.child.Signal(syscall.SIGINT)
	if code := u.child.Wait(t, startTimeout); code != 0 {
		t.Errorf("Ctrl-C: exit code %d, want 0", code)
	}
	if _, err := os.Stat(filepath.Join("/proc", found[1])); err == nil {
		t.Error("a service of the demo runs on")
	}
	if _, err := os.Stat(filepath.Join(u.data, "demo")); err == nil {
		t.Error("the files of the demo remain")
	}
}

// TestTheExampleSpecWorks operates the spec in docs/examples with the command line,
// as in the README.
func TestTheExampleSpecWorks(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	spec := filepath.Join(testenv.ModuleRoot(), "docs", "examples", "sleeper.yaml")
	for _, step := range []struct{ action, says string }{
		{"start", "succeeded"}, {"status", "up, pid"}, {"restart", "succeeded"}, {"kill", "succeeded"},
	} {
		op := testenv.StartChild(t, nil, u.program, "op", step.action, "--host", "0:127.0.0.1", "-f", spec, "--wait", "--server", u.c.url)
		if code := op.Wait(t, finishTimeout); code != 0 {
			t.Fatalf("op %s: exit code %d\n%s", step.action, code, op.Output())
		}
		op.WaitOutput(t, startTimeout, step.says)
	}
}
