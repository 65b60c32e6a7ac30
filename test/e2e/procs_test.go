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

// procs creates sample processes. Each has a separate folder per host, which
// contains the program under the process's name, its pid file, and a file with one
// line per run of the start command.
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

// spec returns the process for the native API. The start command first records that
// it runs.
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

// waiting returns the process with a start command that waits for release. Dozens of them
// wait at once: polling faster starves the agents that are under test.
func (p proc) waiting() map[string]any {
	spec := p.spec()
	control := spec["control"].(map[string]any)
	control["start"] = "while [ ! -e go ]; do sleep 0.5; done; " + control["start"].(string)
	spec["alive"].(map[string]any)["op_timeout"] = "300s"
	return spec
}

// release lets the start command of [proc.waiting] continue.
func (p proc) release(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, all []proc) {
	t.Helper()
	for _, p := range all {
		p.release(t)
	}
}

// waitingStart returns a task that starts processes with [proc.waiting].
func waitingStart(all []proc) map[string]any {
	operations := make([]map[string]any, len(all))
	for i, p := range all {
		operations[i] = map[string]any{"action": "start", "process": p.waiting(), "hosts": []string{p.host}}
	}
	return map[string]any{"operations": operations}
}

// starts returns the number of runs of the start command.
func (p proc) starts() int {
	data, err := os.ReadFile(filepath.Join(p.dir, "starts"))
	if err != nil {
		return 0
	}
	return strings.Count(string(data), "\n")
}

// pid returns the process's pid, or 0 if it does not run. It verifies that the
// process with the pid in the pid file runs the program in the process's folder.
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

// running returns every live process of the program, regardless of the pid file.
func (p proc) running() []int { return programs().of(p) }

// livePrograms are the pids of the live processes of the machine by the path of their program.
type livePrograms map[string][]int

// programs reads all processes: for many of the test's, call it once.
func programs() livePrograms {
	live := livePrograms{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if exe, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe")); err == nil {
			live[exe] = append(live[exe], pid)
		}
	}
	return live
}

func (l livePrograms) of(p proc) []int { return l[filepath.Join(p.dir, p.name)] }

// killAll kills every process whose program is in the test's folder.
func (p *procs) killAll() {
	for exe, pids := range programs() {
		if !strings.HasPrefix(exe, p.base+"/") {
			continue
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// grid creates per processes on each host, named after the test case.
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
