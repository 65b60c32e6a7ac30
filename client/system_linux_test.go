package client_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
)

// dispatcherURL returns the URL of a `procfleet up`. The first call starts it.
var dispatcherURL = sync.OnceValue(func() string {
	url, err := startSystem()
	if err != nil {
		panic(err) // an example has no other way to fail
	}
	return url
})

func startSystem() (url string, err error) {
	binary, err := testenv.Build("./cmd/procfleet")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "procfleet-example-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(binary, "up", "--http", "127.0.0.1:0", "--data", dir, "--log-level", "error")
	cmd.Stderr = os.Stderr
	// The kernel kills the system when the test process ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	atEnd = append(atEnd, func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
		_ = os.RemoveAll(dir)  // a leftover in the temporary folder is harmless
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, url, ready := strings.Cut(lines.Text(), "ready at "); ready {
			return url, nil
		}
	}
	return "", fmt.Errorf("%s ended before it was ready", cmd)
}

// sleeper is a process that really runs on this host, in a folder of its own.
func sleeper(namespace, name, dir string) procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = namespace, name, "sleep"
	spec.SetupPath, spec.PidPath = dir, filepath.Join(dir, "pid")
	spec.Control.Start = "echo >>starts; sleep 600 </dev/null >/dev/null 2>&1 & echo $! >pid"
	spec.Control.NoProfile = true
	if me, err := user.Current(); err == nil {
		spec.Account = me.Username // else root, which only root's agent may use
	}
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = 0, procfleet.Seconds(1)
	return spec
}

// exampleProcess is a process for an example.
func exampleProcess() procfleet.ProcessSpec {
	dir, err := os.MkdirTemp("", "procfleet-example-")
	if err != nil {
		panic(err) // an example has no other way to fail
	}
	atEnd = append(atEnd, func() { _ = os.RemoveAll(dir) }) // a leftover is harmless
	return sleeper("shop", "web", dir)
}
