package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// execute runs a command to its end.
func execute(t *testing.T, c Command) Result {
	t.Helper()
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	c.OutputPath = filepath.Join(t.TempDir(), "out")
	running, err := runner.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-running.Done():
		return running.Result()
	case <-time.After(time.Minute):
		t.Fatal("the command did not end")
		return Result{}
	}
}

func TestBatCommandRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with space & more")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	script := "@echo off\r\necho \"in %CD%\" with %1 and %WORD%\r\nexit /b 7\r\n"
	if err := os.WriteFile(filepath.Join(dir, "run it.bat"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	got := execute(t, Command{Shell: ShellBat, Line: `"run it.bat" "a ^& b"`, Dir: dir, Env: map[string]string{"Word": "spoken"}})
	if got.ExitCode != 7 || !strings.Contains(got.Output, `"in `+dir+`" with "a ^& b" and spoken`) {
		t.Errorf("%#v", got)
	}
	if got := execute(t, Command{Shell: ShellBat, Line: "echo one&echo two"}); !got.OK() || got.Output != "one\ntwo\n" {
		t.Errorf("%#v", got)
	}
}

func TestEnvironmentIsNotTheAgents(t *testing.T) {
	t.Setenv("AGENT_SECRET", "hidden")
	got := execute(t, Command{Shell: ShellBat, Line: "set", Key: "k", Op: "o"})
	if strings.Contains(got.Output, "AGENT_SECRET") || !strings.Contains(got.Output, KeyMark+"=k") || !strings.Contains(strings.ToUpper(got.Output), "SYSTEMROOT=") {
		t.Errorf("%#v", got)
	}
}

func TestContainedCommandTakesWhatItStartedAlong(t *testing.T) {
	for _, contained := range []bool{false, true} {
		dir := t.TempDir()
		copyOfThis(t, filepath.Join(dir, "left.exe"))
		mark := "left-" + t.Name()
		if contained {
			mark += "-contained"
		}
		got := execute(t, Command{
			Shell: ShellBat, Line: "start /b left.exe", Dir: dir, Contained: contained, Key: mark,
			Env: map[string]string{scenarioVar: "sleep"},
		})
		if !got.OK() {
			t.Fatalf("%+v", got)
		}
		find := func() Probe {
			return NewFinder(NewAccounts()).Find(t.Context(), Target{ProcName: "left", SetupPath: dir})
		}
		if contained {
			eventually(t, func() bool { return find().Verdict == Stopped }, "what a contained command started is gone")
			continue
		}
		probe := find()
		if probe.Verdict != Running {
			t.Fatalf("what a start command started is %s: %s", probe.Verdict, probe.Evidence)
		}
		if _, err := KillTree(t.Context(), probe.Procs[0].Identity, KillScope{}); err != nil {
			t.Error(err)
		}
	}
}
