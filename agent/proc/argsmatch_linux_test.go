package proc

import (
	"regexp"
	"strconv"
	"testing"
	"time"
)

// told returns the setup's target whose processes are distinguished by an argument pattern.
func (s setup) told(pattern string) Target {
	target := s.target("app")
	target.Args = regexp.MustCompile(pattern)
	return target
}

func TestArgumentsTellCopiesOfOneProgramApart(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	path := program(t, s.dir, "app")
	first := spawn(t, path, s.dir, "sleep", "--port", "80")
	second := spawn(t, path, s.dir, "sleep", "--port", "81")
	for pattern, want := range map[string][]Identity{
		"--port 80$":      {first.id},
		"--port 81":       {second.id},
		"^/.*app --port ": {first.id, second.id},
		"--port$":         nil,
	} {
		target := s.told(pattern)
		target.PidPath = ""
		got := find(t, target)
		if want == nil {
			wantProbe(t, got, Stopped, "no app with a command line that matches --port$ runs under")
		} else if wantProbe(t, got, Running, "by name and setup path"); len(got.Procs) != len(want) || got.Procs[0].Identity != want[0] {
			t.Errorf("%s finds %+v, want %v", pattern, got.Procs, want)
		}
	}
}

func TestPidFileOfAnotherCopyIsStale(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "sleep", "--port", "80")
	s.writePid(t, strconv.Itoa(h.id.PID))
	wantProbe(t, find(t, s.told("--port 80")), Running, "name and setup path match")
	got := find(t, s.told("--port 81"))
	wantProbe(t, got, Stopped, "--port 80), not app with a command line that matches --port 81")
	if !got.StalePidFile {
		t.Errorf("got %+v, want a stale pid file", got)
	}

	target := s.told("--port 81")
	target.Known = h.id
	wantProbe(t, find(t, target), Running, "known process")
}

// A program may replace its command line before the first search.
func TestWhatTheStartCommandStartedMayCallItselfAnything(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	target := s.told("--port 81")
	var err error
	if target.StartedAfter, err = NowTicks(); err != nil {
		t.Fatal(err)
	}
	target.PidFileAfter = time.Now()
	h := spawn(t, program(t, s.dir, "app"), s.dir, "sleep", "serving")
	s.writePid(t, strconv.Itoa(h.id.PID))
	got := find(t, target)
	wantProbe(t, got, Running, "the start command started it, though its command line does not match --port 81")
	if got.Alias != "" {
		t.Errorf("alias %q is learnt of a program with the right name", got.Alias)
	}
}

func TestProcessWithoutACommandLineMayBeAnyCopy(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawnAs(t, []string{""}, program(t, s.dir, "app"), s.dir, "sleep")
	wantProbe(t, find(t, s.told("--port 80")), Uncertain, "its command line cannot be read")
	wantProbe(t, find(t, s.told("^$")), Running, "by name and setup path")
	s.writePid(t, strconv.Itoa(h.id.PID))
	wantProbe(t, find(t, s.told("--port 80")), Uncertain, "(app), whose command line")
	wantProbe(t, find(t, s.target("app")), Running, "name and setup path match")
}

func TestWhatWasStartedIsToldApartByItsArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := program(t, dir, "app")
	spawn(t, path, "/", "sleep", "--port", "80")
	second := spawn(t, path, "/", "sleep", "--port", "81")
	target := Target{ProcName: "app", Mark: t.Name(), Args: regexp.MustCompile("--port 81")}
	got := find(t, target)
	if wantProbe(t, got, Running, "which a command of this key started"); len(got.Procs) != 1 || got.Procs[0].Identity != second.id {
		t.Errorf("got %+v, want %v", got.Procs, second.id)
	}
	target.Args = regexp.MustCompile("--port 82")
	wantProbe(t, find(t, target), Stopped, "is called app with a command line that matches --port 82")
	spawnAs(t, []string{""}, path, "/", "sleep")
	wantProbe(t, find(t, target), Uncertain, "its command line cannot be read")
}
