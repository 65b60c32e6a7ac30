package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

// publicBinary copies the program into a folder so that every account can start it.
func publicBinary(t *testing.T) (dir, binary string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "procfleet-public") //nolint:usetesting // others cannot enter the folders of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a folder that stays harms no test
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(testenv.BuildBinary(t, "./cmd/procfleet"))
	if err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "procfleet")
	if err := os.WriteFile(binary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, binary
}

// as runs a command as an account, and returns exit code and output.
func as(t *testing.T, uid uint32, dir, binary string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), both.String()
}

// A server that root started without any flags must reject other local accounts on loopback: otherwise they
// could run any command as root.
func TestALocalAccountIsNotRootThroughLoopback(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	const root, nobody = 0, 65534
	dir, binary := publicBinary(t)
	marker := filepath.Join(t.TempDir(), "marker")
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath, spec.Account = "test", "marker", "marker", "/", "root"
	spec.Control.Start, spec.Control.NoProfile = "touch "+marker, true
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = procfleet.Duration(50*time.Millisecond), procfleet.Duration(100*time.Millisecond)
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	s := up(t, filepath.Join(dir, "data"))
	start := []string{"op", "start", "--host", "0:127.0.0.1", "-f", file, "--wait", "--server"}
	code, out := as(t, nobody, dir, binary, append(start, s.url)...)
	if code != command.ExitFailed || !strings.Contains(out, "uid 65534") || !strings.Contains(out, "procfleet app add") || !strings.Contains(out, "--allow-local-users") {
		t.Errorf("nobody over TCP: exit %d\n%s", code, out)
	}
	socket := filepath.Join(s.data, socketName)
	if err := os.Chmod(s.data, 0o711); err != nil { // the folder alone would keep others out
		t.Fatal(err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
	if code, out := as(t, nobody, dir, binary, append(start, "unix:"+socket)...); code != command.ExitFailed || !strings.Contains(out, "permission denied") {
		t.Errorf("nobody over the closed socket: exit %d\n%s", code, out)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if code, out := as(t, nobody, dir, binary, append(start, "unix:"+socket)...); code != command.ExitFailed || !strings.Contains(out, "uid 65534") {
		t.Errorf("nobody over the open socket: exit %d\n%s", code, out)
	}
	if _, out := as(t, root, dir, binary, "task", "list", "--server", "unix:"+socket); strings.Contains(out, "GSETASK") {
		t.Errorf("there is a task:\n%s", out)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command was run")
	}
	for _, server := range []string{s.url, "unix:" + socket} {
		if code, out := as(t, root, dir, binary, append(start, server)...); code == command.ExitFailed || !strings.Contains(out, "finished 1/1") {
			t.Errorf("root at %s: exit %d\n%s", server, code, out)
		}
	}
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("the command of root was not run: %v", err)
	}
}

func TestLocalUsersAreLetInByAFlag(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir, binary := publicBinary(t)
	s := up(t, t.TempDir(), "--agent=false", "--allow-local-users")
	if code, out := as(t, 65534, dir, binary, "task", "list", "--server", s.url); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// TestAServerMayListenOnAUnixSocketAlone also starts a server on the leftover socket of a killed one.
func TestAServerMayListenOnAUnixSocketAlone(t *testing.T) {
	t.Parallel()
	data, address := t.TempDir(), "unix:"+filepath.Join(t.TempDir(), "s")
	for range 2 {
		s := up(t, data, "--agent=false", "--http", address)
		if s.url != address {
			t.Errorf("it says %q, want %q", s.url, address)
		}
		s.procfleet(0, "task", "list")
		other := testenv.StartChild(t, nil, s.binary, "up", "--http", address, "--data", t.TempDir(), "--agent=false")
		if code := other.Wait(t, startTimeout); code != command.ExitFailed {
			t.Errorf("a second one on the same socket ends with %d", code)
		}
		other.WaitOutput(t, startTimeout, "is in use: choose another address")
		s.Kill()
	}
}
