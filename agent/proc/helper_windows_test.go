package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scenarioVar makes the test binary play a managed program instead of testing.
const scenarioVar = "PROCFLEET_PROC_HELPER"

// deadMan ends every helper, whatever happens to its test.
const deadMan = 60 * time.Second

func TestMain(m *testing.M) {
	scenario, ok := os.LookupEnv(scenarioVar)
	if !ok {
		os.Exit(m.Run())
	}
	time.AfterFunc(deadMan, func() { os.Exit(99) })
	switch scenario {
	case "sleep":
		fmt.Println("ready")
		select {}
	case "parent":
		child := program(os.Args[0], "sleep")
		if err := child.Start(); err != nil {
			fmt.Println(err)
			os.Exit(98)
		}
		fmt.Println(child.Process.Pid)
		select {}
	}
	os.Exit(97)
}

func program(path, scenario string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), path)
	cmd.Env = append(os.Environ(), scenarioVar+"="+scenario)
	return cmd
}

// helper is a managed program under test.
type helper struct {
	id   Identity
	line string // the first that it wrote
	dir  string // where it lies and works
	kill func()
}

// start runs a copy of this program under another name; more are further
// entries of its environment. The process is killed at the end of the test.
func start(t *testing.T, name, scenario string, more ...string) helper {
	t.Helper()
	dir := t.TempDir()
	cmd := program(copyOfThis(t, filepath.Join(dir, name)), scenario)
	cmd.Dir, cmd.Env = dir, append(cmd.Env, more...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%s did not begin: %v", name, err)
	}
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return helper{id: id, line: strings.TrimSpace(line), dir: dir, kill: kill}
}

func copyOfThis(t *testing.T, path string) string {
	t.Helper()
	from, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits for a condition, a minute at most.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("in vain: " + what)
		}
	}
}
