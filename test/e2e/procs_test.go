//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// procs makes sample processes: each has a folder of its own per host, with
// the program under the process's name, its pid file, and a file that gets a
// line whenever the start command runs.
type procs struct {
	t    *testing.T
	base string
}

func newProcs(t *testing.T) *procs {
	t.Helper()
	p := &procs{t: t, base: t.TempDir()}
	t.Cleanup(p.killAll)
	return p
}

// proc is one sample process on one host.
type proc struct {
	host, name, dir string
}

func (p *procs) new(host, name string) proc {
	p.t.Helper()
	dir := filepath.Join(p.base, strings.NewReplacer(":", "_", ".", "_").Replace(host), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), program, 0o755); err != nil {
		p.t.Fatal(err)
	}
	return proc{host: host, name: name, dir: dir}
}

// spec is the process in the native API's words. The start command notes that
// it ran before it does anything else.
func (p proc) spec() map[string]any {
	return map[string]any{
		"namespace":  "e2e",
		"name":       p.name,
		"proc_name":  p.name,
		"setup_path": p.dir,
		"pid_path":   filepath.Join(p.dir, p.name+".pid"),
		"control": map[string]any{
			"start":      fmt.Sprintf("echo ran >> starts; ./%s 3600 & echo $! > %s.pid", p.name, p.name),
			"no_profile": true,
		},
		"alive": map[string]any{
			"type": "resident", "op_timeout": "20s", "stop_check": "5s", "start_interval": "1s",
			"start_check_begin": "100ms", "start_check_end": "300ms",
		},
	}
}

// waiting is the process with a start command that waits until it is released.
func (p proc) waiting() map[string]any {
	spec := p.spec()
	control := spec["control"].(map[string]any)
	control["start"] = "while [ ! -e go ]; do sleep 0.05; done; " + control["start"].(string)
	spec["alive"].(map[string]any)["op_timeout"] = "300s"
	return spec
}

// release has the start command of [proc.waiting] continue.
func (p proc) release(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// starts is how often the start command ran.
func (p proc) starts() int {
	data, err := os.ReadFile(filepath.Join(p.dir, "starts"))
	if err != nil {
		return 0
	}
	return strings.Count(string(data), "\n")
}

// pid is the process's pid if it is running, else 0. It believes no pid file:
// the program behind the pid must be the one in the process's folder.
func (p proc) pid() int {
	data, err := os.ReadFile(filepath.Join(p.dir, p.name+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != filepath.Join(p.dir, p.name) {
		return 0
	}
	return pid
}

// running returns every live process of the program, whatever the pid file
// says.
func (p proc) running() []int {
	var pids []int
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range exes {
		if exe, err := os.Readlink(link); err == nil && exe == filepath.Join(p.dir, p.name) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// killAll ends every process whose program lies in the test's folder.
func (p *procs) killAll() {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range exes {
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, p.base+"/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is fine
		}
	}
}

// grid makes per processes on each host, named after the case.
func (p *procs) grid(hosts []string, per int, name string) []proc {
	p.t.Helper()
	var all []proc
	for _, host := range hosts {
		for i := range per {
			all = append(all, p.new(host, fmt.Sprintf("%s%d", name, i)))
		}
	}
	return all
}
