//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// run runs a command of procfleet against the system, and returns its output.
func (u *up) run(args ...string) string {
	u.t.Helper()
	child := testenv.StartChild(u.t, nil, u.program, append(args, "--server", u.c.url)...)
	if code := child.Wait(u.t, startTimeout); code != 0 {
		u.t.Fatalf("procfleet %v: exit %d\n%s", args, code, child.Output())
	}
	return child.WholeOutput(u.t, startTimeout)
}

// place replaces the topology of business 2.
func (u *up) place(text string) string {
	u.t.Helper()
	path := filepath.Join(u.t.TempDir(), "topology.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		u.t.Fatal(err)
	}
	return u.run("topology", "apply", "--biz", "2", "-f", path)
}

// catalogued returns a process for the legacy CMDB's API.
func (p proc) catalogued(autoStart bool) string {
	start := fmt.Sprintf("echo ran >> starts; ./%s 3600 & echo $! > %s.pid", p.name, p.name)
	text, _ := json.Marshal(map[string]any{ // all values can be encoded
		"bk_process_name": p.name, "bk_func_name": p.name, "work_path": p.dir, "pid_file": p.name + ".pid",
		"start_cmd": start, "auto_start": autoStart, "auto_time_gap": 1,
	})
	return string(text)
}

// placed is the state of a process of business 2 in GET /v1/processes.
type placed struct {
	Registration *struct{}
	Reported     *struct {
		Desired string
		Status  struct{ PID int }
	}
}

// placed returns the state of the process on the host of up's agent.
func (u *up) placed(name string) placed {
	u.t.Helper()
	var answer struct {
		Processes []struct {
			placed
			Host, Name string
		}
	}
	u.c.get("/v1/processes?namespace=2", &answer)
	for _, p := range answer.Processes {
		if p.Host == "0:127.0.0.1" && p.Name == name {
			return p.placed
		}
	}
	return placed{}
}

// awaitReported waits until a process is reported with a desired state and its pid,
// and is registered or not.
func (u *up) awaitReported(p proc, desired string, registered bool) {
	u.t.Helper()
	var s placed
	testenv.Eventually(u.t, finishTimeout, func() bool {
		s = u.placed(p.name)
		return s.Reported != nil && s.Reported.Desired == desired && s.Reported.Status.PID == p.pid() && p.pid() != 0 && (s.Registration != nil) == registered
	}, p.name+" is reported as "+desired)
}

// changesBinding binds a process to a module, or unbinds it, and waits for the
// resulting task.
func (u *up) changesBinding(way string) task {
	u.t.Helper()
	id := u.cmdb().must(way, "", 200, 0).Task
	if id == "" {
		u.t.Fatalf("%s creates no task", way)
	}
	return u.c.wait(id)
}

// TestBoundProcessesAreRegistered checks that a process is registered on the
// hosts of a bound module, and supervised if its definition says so, until it is
// unbound.
func TestBoundProcessesAreRegistered(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	testenv.Eventually(t, startTimeout, func() bool {
		return strings.Contains(u.run("topology", "show", "--biz", "2"), "1 hosts with an agent are in no module: 0:127.0.0.1")
	}, "the agent without a module is shown")
	u.place("sets: [{name: s1, modules: [{name: web, labels: [os=linux]}]}]\n")
	if shown := u.run("topology", "show", "--biz", "2"); !strings.Contains(shown, "s1   web     0        0:127.0.0.1  yes, by label\n0 hosts with an agent") {
		t.Errorf("a module by label:\n%s", shown)
	}
	if shown := u.run("hosts", "--biz", "2", "--module", "web"); !strings.Contains(shown, "0:127.0.0.1") {
		t.Errorf("hosts of a module by label:\n%s", shown)
	}
	u.place("sets: []\n")
	const topology = "auto_register: true\nsets: [{name: s1, modules: [{name: web, hosts: [0:127.0.0.1]}]}, {name: s2, modules: [{name: web, hosts: [0:10.99.9.9]}]}]\n"
	if said := u.place(topology); !strings.HasPrefix(said, "version 3, was 2; binding registers\ns1/web added, +1: 0:127.0.0.1\n") {
		t.Errorf("output of apply:\n%s", said)
	}
	if shown := u.run("topology", "show", "--biz", "2"); !strings.Contains(shown, "s1   web     0        0:127.0.0.1  yes\ns2   web     0        0:10.99.9.9  none\n0 hosts with an agent") {
		t.Errorf("output of show:\n%s", shown)
	}

	procs, c := newProcs(t), u.cmdb()
	supervised, left := procs.new("0:127.0.0.1", "kept"), procs.new("0:127.0.0.1", "left")
	bindKept, bindLeft := "module/0/2/"+c.define("0/2", supervised.catalogued(true))+"/web", "module/0/2/"+c.define("0/2", left.catalogued(false))+"/web"
	if end := u.changesBinding("PUT " + bindKept); end.Counts["succeeded"] != 1 || end.Counts["unreachable"] != 1 {
		t.Errorf("the task ended with %v", end.Counts)
	}
	u.awaitReported(supervised, "up", true)
	if again := c.must("PUT "+bindKept, "", 200, 0); again.Task != "" {
		t.Errorf("a repeated binding creates task %s", again.Task)
	}
	first := supervised.pid()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, finishTimeout, func() bool { pid := supervised.pid(); return pid != 0 && pid != first }, "the killed process runs again")

	start := exec.CommandContext(t.Context(), "sh", "-c", "./left 3600 >/dev/null 2>&1 & echo $! > left.pid")
	start.Dir = left.dir
	if err := start.Run(); err != nil {
		t.Fatal(err)
	}
	u.changesBinding("PUT " + bindLeft)
	u.awaitReported(left, "none", true)
	u.child.Kill() // a restarted agent adopts both
	u.start()
	u.awaitReported(supervised, "up", true)
	u.awaitReported(left, "none", true)
	if left.starts() != 0 {
		t.Errorf("the unsupervised process was started %d times", left.starts())
	}

	pid := supervised.pid()
	if end := u.changesBinding("DELETE " + bindKept); end.Counts["succeeded"] != 1 {
		t.Errorf("the task ended with %v", end.Counts)
	}
	u.awaitReported(supervised, "none", false)
	if supervised.pid() != pid {
		t.Errorf("pid %d became %d by unbinding", pid, supervised.pid())
	}
	if s := u.placed("left"); s.Registration == nil {
		t.Error("another process of the same module is unregistered, too")
	}
	if said := u.run("topology", "apply", "--biz", "3", "-f", filepath.Join("..", "..", "docs", "examples", "topology.yaml")); !strings.HasPrefix(said, "version 1, was 0; binding does not register\ns1/web added, +1: 0:127.0.0.1\ns1/idle added") {
		t.Errorf("output of apply with the example:\n%s", said)
	}
	if said := u.place("sets: []"); !strings.Contains(said, "binding registers\ns1/web removed, -1: 0:127.0.0.1\n") {
		t.Errorf("output of apply without a change:\n%s", said)
	}
}

// TestKilledBetweenBindingAndTask kills the dispatcher after it stored a binding
// and before it created the task. A repeated request must create the task.
func TestKilledBetweenBindingAndTask(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.child = testenv.StartChild(t, crashAt("dispatcher.stored"), u.program, u.args...)
	u.child.WaitHTTP(t, startTimeout, u.c.url+"/readyz")
	u.place("auto_register: true\nsets: [{name: s1, modules: [{name: web, hosts: [0:127.0.0.1]}]}]\n")
	p := newProcs(t).new("0:127.0.0.1", "bound")
	bind := "PUT module/0/2/" + u.cmdb().define("0/2", p.catalogued(true)) + "/web"
	if a, err := u.cmdb().ask(bind, ""); err == nil {
		t.Fatalf("response %v, but the dispatcher should have died at dispatcher.stored", a)
	}
	u.child.Wait(t, startTimeout)
	u.start()
	if end := u.changesBinding(bind); end.Counts["succeeded"] != 1 {
		t.Errorf("the task ended with %v", end.Counts)
	}
	u.awaitReported(p, "up", true)
}
