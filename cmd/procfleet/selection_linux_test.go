package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// cataloged stores two processes in the catalog of business 2: a sleeping one that is bound to modules,
// and one without a binding. It also stores the topology: the module web has this host, and the module
// db has a host without an agent.
func (s *system) cataloged() (pidFile string) {
	s.t.Helper()
	dir := s.t.TempDir()
	const text = `sets:
- name: s1
  modules:
  - {name: web, hosts: ["0:127.0.0.1"]}
  - {name: db, hosts: ["0:10.99.99.99"]}
`
	s.procfleet(0, "topology", "apply", "--biz", "2", "-f", s.written(dir, "topology.yaml", text))
	me, err := user.Current()
	if err != nil {
		s.t.Fatal(err)
	}
	processes := fmt.Sprintf(`name: sleeper
func_name: sleep
work_path: %[1]s
pid_file: sleeper.pid
user: %[2]s
start_cmd: sleep 3600 </dev/null >/dev/null 2>&1 & echo $! >sleeper.pid
modules: [web, db]
---
name: sleeper-loose
work_path: %[1]s
`, dir, me.Username)
	s.procfleet(0, "process", "import", "--biz", "2", "-f", s.written(dir, "processes.yaml", processes))
	pidFile = filepath.Join(dir, "sleeper.pid")
	s.t.Cleanup(func() { killFrom(pidFile) })
	return pidFile
}

// written writes a file and returns its path.
func (s *system) written(dir, name, text string) string {
	s.t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func TestUpOperatesWhatIsSelectedInTheCatalog(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	pidFile := s.cataloged()
	selected := []string{"--biz", "2", "--process", "sleeper*"}
	op := func(code int, action string, more ...string) string {
		t.Helper()
		return s.procfleet(code, append(append([]string{"op", action}, selected...), more...)...)
	}

	out := op(0, "start", "--plan")
	for _, want := range []string{
		"planned: 2 items on 2 hosts, 1 of them without an agent", "s1/db (1), s1/web (1)", "0:127.0.0.1    sleeper  s1/web   yes", "0:10.99.99.99  sleeper  s1/db    none",
		"is bound to no module",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q\n%s", want, out)
		}
	}
	var p client.Plan
	if err := json.Unmarshal([]byte(op(0, "start", "--plan", "--json")), &p); err != nil || len(p.Operations) != 1 || len(p.Operations[0].Hosts) != 2 {
		t.Errorf("%v: planned %+v", err, p)
	}
	op(command.ExitFailed, "reload", "--plan") // there is no command for it
	op(command.ExitFailed, "start", "--module", "wbe")
	if tasks := s.procfleet(0, "task", "list"); strings.Contains(tasks, "GSETASK") || readPID(pidFile) != 0 {
		t.Fatalf("a plan or a refusal did something\n%s", tasks)
	}

	out = op(0, "start", "--module", "web", "--wait")
	pid := readPID(pidFile)
	if !alive(pid) || !strings.Contains(out, fmt.Sprintf("up, pid %d", pid)) || strings.Contains(out, "supervised") {
		t.Errorf("pid %d, output\n%s", pid, out)
	}
	out = op(exitHostsFailed, "status", "--wait")
	if !strings.Contains(out, "0:10.99.99.99  2:sleeper") || !strings.Contains(out, fmt.Sprint(pid)) {
		t.Errorf("status\n%s", out)
	}
	op(0, "stop", "--set", "s1", "--module", "web", "--wait")
	if alive(pid) {
		t.Error("the process runs on after a stop")
	}
}
