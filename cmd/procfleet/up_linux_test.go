package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

// startTimeout is generous: a loaded machine with the race detector is slow.
const startTimeout = 60 * time.Second

// system is a running `procfleet up`.
type system struct {
	t      *testing.T
	binary string
	data   string
	*testenv.Child
	url string
}

// up starts the system on a free port and waits until it reports that it is ready.
func up(t *testing.T, data string, args ...string) *system {
	t.Helper()
	s := &system{t: t, binary: testenv.BuildBinary(t, "./cmd/procfleet"), data: data}
	args = append([]string{"up", "--http", "127.0.0.1:0", "--data", data, "--log-format", "json"}, args...)
	s.Child = testenv.StartChild(t, nil, s.binary, args...)
	line := s.WaitOutput(t, startTimeout, "ready at ")
	_, s.url, _ = strings.Cut(line, "ready at ")
	return s
}

// procfleet runs another command against the system, in this process.
func (s *system) procfleet(wantCode int, args ...string) (stdout string) {
	s.t.Helper()
	code, stdout, stderr := call(s.t, append(slices.Clone(args), "--server", s.url)...)
	if code != wantCode {
		s.t.Fatalf("procfleet %v: exit %d, want %d\n%s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout
}

// taskIn returns the id of the task in the output of a command.
func taskIn(t *testing.T, output string) string {
	t.Helper()
	id := regexp.MustCompile(`GSETASK:\d+:\d+`).FindString(output)
	if id == "" {
		t.Fatalf("no task in\n%s", output)
	}
	return id
}

// sleeperSpec writes the spec of a process of the test's own.
func sleeperSpec(t *testing.T) string {
	t.Helper()
	return sleeperNamed(t, "sleeper")
}

func sleeperNamed(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "sleeper.pid")
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = "test", name, "sleep"
	spec.SetupPath, spec.PidPath = dir, pidFile
	spec.Control.Start = "sleep 3600 </dev/null >/dev/null 2>&1 & echo $! > " + pidFile
	spec.Control.NoProfile = true
	spec.Alive.StartCheckBegin = procfleet.Duration(100 * time.Millisecond)
	spec.Alive.StartCheckEnd = procfleet.Duration(200 * time.Millisecond)
	if me, err := user.Current(); err == nil {
		spec.Account = me.Username
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killFrom(pidFile) })
	return path
}

// killFrom kills the process whose pid is in a file, if the file exists.
func killFrom(pidFile string) {
	if pid := readPID(pidFile); pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	}
}

func readPID(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// alive reports whether a process runs. A zombie does not run.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || pid <= 1 {
		return false
	}
	afterName := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(afterName), "Z")
}

func TestUpOperatesARealProcess(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		s.WaitHTTP(t, startTimeout, s.url+path)
	}
	spec := sleeperSpec(t)
	out := s.procfleet(0, "op", "start", "--host", "0:127.0.0.1", "-f", spec, "--wait")
	pid := readPID(filepath.Join(filepath.Dir(spec), "sleeper.pid"))
	if !alive(pid) || !strings.Contains(out, fmt.Sprintf("up, pid %d, supervised", pid)) {
		t.Errorf("pid %d, output\n%s", pid, out)
	}
	id := taskIn(t, out)

	var document struct {
		Task    client.Task
		Results []client.Result
	}
	// One host has no agent: the command fails, and prints the failure first.
	out = s.procfleet(exitHostsFailed, "op", "status", "--host", "0:127.0.0.1,0:10.99.99.99", "-f", spec, "--wait", "--json")
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r := document.Results; len(r) != 2 || r[0].Code != procfleet.CodeAgentAbnormal || r[1].Status == nil || r[1].Status.PID != pid {
		t.Errorf("results %+v", r)
	}

	if out := s.procfleet(0, "task", "get", id); !strings.Contains(out, "finished") {
		t.Errorf("task get:\n%s", out)
	}
	if out := s.procfleet(0, "task", "list", "--limit", "1"); strings.Contains(out, id) || !strings.Contains(out, "--cursor") {
		t.Errorf("task list shows more than the newest:\n%s", out)
	}
	if out := s.procfleet(0, "task", "results", id); !strings.Contains(out, "test:sleeper") {
		t.Errorf("task results:\n%s", out)
	}
	if out := s.procfleet(0, "task", "watch", id); !strings.Contains(out, "finished 1/1: 1 succeeded") {
		t.Errorf("task watch:\n%s", out)
	}
	s.procfleet(command.ExitFailed, "task", "get", "GSETASK:20200101000000:1")
	s.procfleet(0, "op", "kill", "--host", "0:127.0.0.1", "-f", spec, "--wait")
	if alive(pid) {
		t.Errorf("process %d is alive after kill", pid)
	}
}

func testRepeatedKey(t *testing.T, s *system) {
	t.Helper()
	submit := func(action string, code int) string {
		return s.procfleet(code, "op", action, "--host", "0:10.0.0.1", "-f", "testdata/spec.yaml", "--idempotency-key", "k", "--json")
	}
	first, again := submit("status", 0), submit("status", 0)
	if first != again {
		t.Errorf("%s and %s", first, again)
	}
	submit("stop", command.ExitFailed)
}

func TestCtrlCLeavesTheProcessAloneAndTheNextStartFindsIt(t *testing.T) {
	t.Parallel()
	data, spec := t.TempDir(), sleeperSpec(t)
	s := up(t, data)
	s.procfleet(0, "op", "start", "--host", "0:127.0.0.1", "-f", spec, "--wait")
	pid := readPID(filepath.Join(filepath.Dir(spec), "sleeper.pid"))
	s.Signal(syscall.SIGINT)
	if code := s.Wait(t, startTimeout); code != 0 {
		t.Errorf("exit %d after Ctrl-C, want 0", code)
	}
	if !alive(pid) {
		t.Fatalf("process %d did not survive Ctrl-C", pid)
	}

	s = up(t, data)
	out := s.procfleet(0, "op", "start", "--host", "0:127.0.0.1", "-f", spec, "--wait")
	if !strings.Contains(out, "unchanged") || !strings.Contains(out, fmt.Sprintf("pid %d, supervised", pid)) {
		t.Errorf("the process was not found again:\n%s", out)
	}
	s.procfleet(0, "op", "stop", "--host", "0:127.0.0.1", "-f", spec, "--wait")
}

func TestASecondUpOnTheSameFolderNamesTheLock(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir(), "--agent=false")
	second := testenv.StartChild(t, nil, s.binary, "up", "--http", "127.0.0.1:0", "--data", s.data)
	if code := second.Wait(t, startTimeout); code != command.ExitFailed {
		t.Errorf("exit %d, want %d", code, command.ExitFailed)
	}
	for _, want := range []string{filepath.Join(s.data, "lock"), strconv.Itoa(s.PID()), "--data"} {
		second.WaitOutput(t, startTimeout, want)
	}
}

// up must reject a data folder that other accounts may write: with their files it would execute their
// tasks and accept their fleet key.
func TestUpTrustsNoDataFolderThatOthersMayWrite(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	folder := func(mode os.FileMode) string {
		dir := filepath.Join(t.TempDir(), "data")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	says := map[string]string{folder(0o777): "has mode 0777", folder(0o777 | os.ModeSticky): "has mode 0777"}
	if os.Geteuid() == 0 {
		foreign, link := folder(0o700), filepath.Join(t.TempDir(), "link")
		if err := errors.Join(os.Chown(foreign, nobody, nobody), os.Symlink(foreign, link)); err != nil {
			t.Fatal(err)
		}
		says[folder(0o770)], says[foreign], says[link] = "has mode 0770", "belongs to uid 65534", "belongs to uid 65534"
	}
	for dir, want := range says {
		child := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet"), "up", "--http", "127.0.0.1:0", "--data", dir, "--agent=false")
		if code := child.Wait(t, startTimeout); code != command.ExitFailed {
			t.Errorf("%s: exit %d, want %d", dir, code, command.ExitFailed)
		}
		child.WaitOutput(t, startTimeout, want)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v was written there: %v", dir, left, err)
		}
	}
}

func TestAnAddressInUseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing depends on it
	for _, flag := range []string{"--http", "--nats-listen"} {
		child := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet"),
			"up", "--http", "127.0.0.1:0", flag, l.Addr().String(), "--data", t.TempDir(), "--agent=false")
		if code := child.Wait(t, startTimeout); code != command.ExitFailed {
			t.Errorf("%s: exit %d, want %d", flag, code, command.ExitFailed)
		}
		child.WaitOutput(t, startTimeout, "choose another address")
	}
}

func TestOtherAgentsJoinThroughNATSListen(t *testing.T) {
	t.Parallel()
	listen := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	data := t.TempDir()
	s := up(t, data, "--agent=false", "--nats-listen", listen)
	fleet := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "simulate", "--agents", "300", "--nats", "nats://"+listen,
		"--nats-creds", testenv.ServerCredentials(data), "--fleet-key", filepath.Join(data, "fleet.key"))
	fleet.WaitOutput(t, startTimeout, "ready 300")
	var hosts []string
	for i := range 300 {
		hosts = append(hosts, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))
	}
	out := s.procfleet(0, "op", "status", "--host", strings.Join(hosts, ","), "-f", "testdata/spec.yaml", "--wait")
	if !strings.Contains(out, "finished 300/300: 300 succeeded") {
		t.Errorf("output\n%s", out)
	}
}

// The embedded NATS must reject connections of other local accounts: every account of the machine can reach
// its port.
func TestALocalUserIsAStrangerToTheEmbeddedNATS(t *testing.T) {
	t.Parallel()
	listen := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	data := t.TempDir()
	s := up(t, data, "--agent=false", "--nats-listen", listen)
	conn, err := nats.Connect("nats://" + listen)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without credentials: %v", err)
	}
	s.procfleet(0, "op", "status", "--host", "0:10.0.0.1", "-f", "testdata/spec.yaml")
	testenv.Eventually(t, startTimeout, func() bool {
		out, err := exec.Command(s.binary, "audit", "--nats", "nats://"+listen, "--nats-creds", testenv.ServerCredentials(data)).CombinedOutput()
		return err == nil && strings.Contains(string(out), "status")
	}, "the audit log is read with the credentials in the data folder")
}

func TestABusThatLostEverythingIsPreparedAgain(t *testing.T) {
	t.Parallel()
	listen := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	startBus := func() *natsembed.Server {
		server, err := natsembed.Start(natsembed.Config{StoreDir: t.TempDir(), Listen: listen, Log: testenv.Log(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Shutdown)
		return server
	}
	first := startBus()
	data := t.TempDir()
	s := up(t, data, "--agent=false", "--nats", "nats://"+listen)
	fleet := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "simulate", "--agents", "3", "--nats", "nats://"+listen, "--fleet-key", filepath.Join(data, "fleet.key"))
	fleet.WaitOutput(t, startTimeout, "ready 3")
	first.Shutdown()
	startBus()
	s.WaitHTTP(t, startTimeout, s.url+"/readyz")
	out := s.procfleet(0, "op", "status", "--host", "0:10.0.0.0,0:10.0.0.1,0:10.0.0.2", "-f", "testdata/spec.yaml", "--wait")
	if !strings.Contains(out, "finished 3/3: 3 succeeded") {
		t.Errorf("output\n%s", out)
	}
}

func TestDemoKilledInTheMiddleIsRepeatedAndRemoved(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	services := func() (files []string) {
		files, err := filepath.Glob(filepath.Join(data, "demo", "*", "demo.pid"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	t.Cleanup(func() {
		for _, file := range services() {
			killFrom(file)
		}
	})
	s := up(t, data, "--demo=10ms")
	s.WaitOutput(t, startTimeout, "finished: 66 succeeded")
	s.Kill()

	s = up(t, data, "--demo=10ms")
	s.WaitOutput(t, startTimeout, "The demo is over")
	var pids []int
	for _, file := range services() {
		pids = append(pids, readPID(file))
	}
	if len(pids) != 6 {
		t.Errorf("%d pid files, want one for each of six services", len(pids))
	}
	s.Signal(syscall.SIGINT)
	s.Wait(t, startTimeout)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("service %d runs on", pid)
		}
	}
}
