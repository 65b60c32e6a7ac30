package agenttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// Program is a program for the agent to manage: by default the demo (see package demo) in
// its own folder.
type Program struct {
	Host *Host
	Dir  string // setup path
	Spec agentproto.Spec
}

// Name returns the name of the program file.
const Name = "demo"

// Program returns a resident daemon that starts successfully, is stopped by SIGTERM and
// restarted 100 ms after it died. Its start command appends a line to the file "starts".
func (h *Host) Program() *Program {
	h.tb.Helper()
	p := &Program{Host: h, Dir: h.tb.TempDir()}
	p.Install(Name)
	p.Spec = agentproto.Spec{
		Key: p.Dir, ProcName: Name, SetupPath: p.Dir, PidPath: p.Path("demo.pid"), Account: "root", NoProfile: true,
		Type: "resident", StartCmd: Daemon("-pid demo.pid"), Env: h.Env(),
		OpTimeoutMS: Patience.Milliseconds(), StopCheckMS: Patience.Milliseconds(), StartRetries: 4, StartIntervalMS: 100,
		Instances: 1,
	}
	return p
}

// Sleeper returns a resident daemon that uses few resources, for tests with many daemons.
func (h *Host) Sleeper() *Program {
	h.tb.Helper()
	p := h.Program()
	p.Spec.ProcName = "sleep"
	p.Spec.StartCmd = "echo start >>starts; setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >demo.pid"
	return p
}

// Specs returns the specs of several programs.
func Specs(programs []*Program) []agentproto.Spec {
	specs := make([]agentproto.Spec, len(programs))
	for i, p := range programs {
		specs[i] = p.Spec
	}
	return specs
}

// Daemon returns a start command that appends a line to the file "starts" and returns when
// the demo with the given flags is ready.
func Daemon(flags string) string {
	return "echo start >>starts; exec ./demo -d " + flags + " >/dev/null 2>&1 </dev/null"
}

// Demo returns the path of the demo's program file.
func (h *Host) Demo() string {
	h.tb.Helper()
	return testenv.BuildBinary(h.tb, "./internal/testenv/agenttest/demo")
}

// Install copies the demo into the program's folder under the given name.
func (p *Program) Install(name string) {
	p.Host.tb.Helper()
	built := p.Host.Demo()
	if os.Link(built, p.Path(name)) == nil {
		return
	}
	text, err := os.ReadFile(built)
	if err != nil {
		p.Host.tb.Fatal(err)
	}
	if err := os.WriteFile(p.Path(name), text, 0o755); err != nil {
		p.Host.tb.Fatal(err)
	}
}

// Path returns the path of a file in the program's folder.
func (p *Program) Path(name string) string { return filepath.Join(p.Dir, name) }

// With returns the spec of the program with changes.
func (p *Program) With(change func(*agentproto.Spec)) agentproto.Spec {
	s := p.Spec
	change(&s)
	return s
}

// Write writes a file in the program's folder.
func (p *Program) Write(name, text string) {
	p.Host.tb.Helper()
	if err := os.WriteFile(p.Path(name), []byte(text), 0o600); err != nil {
		p.Host.tb.Fatal(err)
	}
}

// Lines returns the number of lines of a file in the program's folder; 0 without the file.
func (p *Program) Lines(name string) int {
	p.Host.tb.Helper()
	text, err := os.ReadFile(p.Path(name))
	if err != nil && !os.IsNotExist(err) {
		p.Host.tb.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// Starts returns how often the start command ran.
func (p *Program) Starts() int { return p.Lines("starts") }

// PID returns the pid in the pid file if that process is alive and belongs to the host,
// otherwise 0.
func (p *Program) PID() int {
	text, err := os.ReadFile(p.Spec.PidPath)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	for try := 0; try < 1000 && Alive(pid) && len(environ(pid)) == 0; try++ {
		runtime.Gosched() // it executes its program
	}
	if !p.Host.owns(pid) {
		return 0
	}
	return pid
}

// Running returns the live processes that run the program file.
func (p *Program) Running() []int {
	return slices.DeleteFunc(p.Host.Marked(), func(pid int) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil || strings.TrimSuffix(exe, " (deleted)") != p.Path(Name)
	})
}

// WaitRunning waits until n live processes run the program file. The parent of a daemon
// may end a little later than its child is ready.
func (p *Program) WaitRunning(n int) {
	p.Host.tb.Helper()
	testenv.Eventually(p.Host.tb, Patience, func() bool { return len(p.Running()) == n }, fmt.Sprintf("%d processes run the program", n))
}

// Spawn starts the program without the agent, as an operator would, waits until it is ready,
// and returns its pid. Only init reaps it.
func (p *Program) Spawn(flags ...string) int {
	p.Host.tb.Helper()
	before := p.Running()
	p.Run("./"+Name, slices.Concat([]string{"-d"}, flags)...)
	for _, pid := range p.Running() {
		if !slices.Contains(before, pid) {
			return pid
		}
	}
	p.Host.tb.Fatal("the program did not start")
	return 0
}

// Run runs a program in the folder and waits until it has ended.
func (p *Program) Run(program string, args ...string) {
	p.Host.tb.Helper()
	cmd := p.Command(program, args...)
	if err := cmd.Run(); err != nil {
		p.Host.tb.Fatalf("%s: %v", program, err)
	}
}

// Command returns a command in the folder with the environment of [Host.Env].
func (p *Program) Command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = p.Dir
	cmd.Env = os.Environ()
	for name, value := range p.Host.Env() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// Background starts a command; it is killed and reaped at the end of the test.
func (p *Program) Background(cmd *exec.Cmd) *exec.Cmd {
	p.Host.tb.Helper()
	if err := cmd.Start(); err != nil {
		p.Host.tb.Fatal(err)
	}
	p.Host.tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // an error means that the process has already ended
		_ = cmd.Wait()
	})
	return cmd
}
