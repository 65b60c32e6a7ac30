package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
)

// TestProgramsOfSupervisordRunAsSpecs imports a configuration with an include, expressions and
// two processes of one program, and starts the processes.
func TestProgramsOfSupervisordRunAsSpecs(t *testing.T) {
	t.Parallel()
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "specs")
	write(t, filepath.Join(dir, "supervisord.conf"), "[supervisord]\nnodaemon=true\n\n[include]\nfiles = conf.d/*.conf\n")
	write(t, filepath.Join(dir, "conf.d", "sleeper.conf"), `[program:sleeper]
command=/bin/sleep 36%(process_num)02d ; a comment
process_name=%(program_name)s_%(process_num)02d
numprocs=2
directory=`+dir+`
environment=GREETING="hello, 50%%",
  OTHER='x y'
user=`+account(t)+`
stdout_logfile=out.log
stopsignal=QUIT
startretries=7
`)
	s := up(t, t.TempDir())
	args := []string{"import", "supervisord", filepath.Join(dir, "supervisord.conf"), "--out", out}
	printed, _ := callBoth(t, args...)
	for n := range 2 {
		if want := filepath.Join(out, fmt.Sprintf("sleeper_%02d.yaml\n", n)); !strings.Contains(printed, want) {
			t.Fatalf("printed\n%s, want %s", printed, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(out, "sleeper_01.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := parseSpec(text, procfleet.ActionStart)
	if err != nil || spec.Alive.StartRetries != 7 || spec.Control.Environment["GREETING"] != "hello, 50%" || spec.Control.Environment["OTHER"] != "x y" ||
		!strings.Contains(string(text), "# stopsignal QUIT: a stop sends SIGTERM") {
		t.Errorf("spec %+v, %v of\n%s", spec, err, text)
	}
	for n := range 2 {
		file := filepath.Join(out, fmt.Sprintf("sleeper_%02d.yaml", n))
		if out := s.procfleet(0, "start", "-f", file, "0:127.0.0.1"); !strings.Contains(out, "up, pid ") {
			t.Errorf("start of %s:\n%s", file, out)
		}
	}
	if out := s.procfleet(0, "ps", "--state", "up", "-o", "name"); out != "0:127.0.0.1 supervisord:sleeper_00\n0:127.0.0.1 supervisord:sleeper_01\n" {
		t.Errorf("the processes are\n%s", out)
	}
	for n := range 2 {
		s.procfleet(0, "stop", fmt.Sprintf("supervisord/sleeper_%02d", n))
	}
	if text, code := callBoth(t, args...); code != 2 || !strings.Contains(text, "sleeper_00.yaml exists; replace it with --force") {
		t.Errorf("an import over existing files: exit %d\n%s", code, text)
	}
}

// TestUnitsOfDebianPackagesAreImported reads the units that the packages of the tests contain.
func TestUnitsOfDebianPackagesAreImported(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	units := map[string][]string{ // parts of the spec
		"redis-server": {"proc_name: redis-server", "account: redis", "start: \"/usr/bin/redis-server /etc/redis/redis.conf --supervised systemd --daemonize no </dev/null", "type: resident", "# Type=notify"},
		"supervisor":   {"proc_name: supervisord", "stop: \"/usr/bin/supervisorctl", "start_interval: 50s"},
	}
	files, err := filepath.Glob("/lib/systemd/system/*.service")
	if err != nil || len(files) == 0 {
		testenv.Missing(t, "root", "no units of systemd are installed, %v", err)
	}
	imported := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".service")
		if text, code := callBoth(t, "import", "systemd", file, "--out", out); code != 0 {
			if _, listed := units[name]; listed || strings.Contains(text, "panic") {
				t.Errorf("%s: exit %d\n%s", name, code, text)
			}
			continue // a unit that is no process that runs, or that has an instance
		}
		imported++
		text, err := os.ReadFile(filepath.Join(out, name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseSpec(text, procfleet.ActionStart); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range units[name] {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not contain %q:\n%s", name, part, text)
			}
		}
	}
	if imported == 0 {
		t.Errorf("none of %d units was imported", len(files))
	}
	if text, code := callBoth(t, "import", "systemd", "no-such-unit", "--out", out); code != 2 || !strings.Contains(text, "no unit no-such-unit.service in /etc/systemd/system") {
		t.Errorf("a unit that does not exist: exit %d\n%s", code, text)
	}
}

// callBoth returns the output of a command on both streams, and its exit code.
func callBoth(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	code, stdout, stderr := call(t, args...)
	return stdout + stderr, code
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func account(t *testing.T) string {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return me.Username
}
