package operate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

func TestAnswersAreOneBoundedLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		result proc.Result
		text   string
		ok     bool
	}{
		{"what it says", proc.Result{Output: "nginx/1.25\n"}, "nginx/1.25", true},
		{"the first line that says anything", proc.Result{Output: "\n \t\n  openjdk 21 \r\nOpenJDK Runtime\n"}, "openjdk 21", true},
		{"nothing said", proc.Result{}, "ok", true},
		{"exit status", proc.Result{ExitCode: 3, Output: "port 80 is closed\nbye\n"}, "failed: exit=3; port 80 is closed", false},
		{"exit status alone", proc.Result{ExitCode: 1}, "failed: exit=1", false},
		{"not found", proc.Result{ExitCode: 127, Hint: "not found: nginx"}, "failed: exit=127 (not found: nginx)", false},
		{"signal", proc.Result{ExitCode: -1, Signal: syscall.SIGSEGV}, "failed: signal=SIGSEGV", false},
		{"too long", proc.Result{TimedOut: true, Output: "checking"}, "timeout", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := answerOf(c.result); got.text != c.text || got.ok != c.ok || !got.ran {
				t.Errorf("got %+v, want %q, ok %v", got, c.text, c.ok)
			}
		})
	}
	long := answerOf(proc.Result{Output: strings.Repeat("ä", maxAnswer) + "\n"}).text
	if len(long) > maxAnswer || !utf8.ValidString(long) || len(long) < maxAnswer-utf8.UTFMax {
		t.Errorf("a long line is shown as %d bytes, want up to %d of valid UTF-8", len(long), maxAnswer)
	}
}

// Regression: the version was known only after a status operation with the whole spec, so a
// caller that compared versions after a restart reinstalled forever.
func TestReportsHaveTheVersionWithoutAStatusOperation(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.VersionCmd = "echo asked >>versions; echo 1.2.3" })
	version := func() string {
		for _, p := range g.engine.Processes() {
			if p.Key == spec.Key {
				return p.Status.Version
			}
		}
		return "not reported"
	}
	g.want("start", spec, 0, "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return version() == "1.2.3" }, "the version is reported after the start")
	for range 20 { // a report does not run the command again
		version()
	}
	if n := g.lines("versions"); n != 1 {
		t.Errorf("the version was asked for %d times, want once", n)
	}
	g.want("restart", spec, 0, "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return version() == "1.2.3" && g.lines("versions") == 2 }, "the new process is asked for its version")
	spec.VersionCmd = "echo 2.0.0"
	g.want("supervise", spec, 0, "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return version() == "2.0.0" }, "the new command's version is reported")
}

// TestAReportedVersionIsAskedForAgainWhenItIsOld: the version that a running program reports
// can change, since its files can be replaced.
func TestAReportedVersionIsAskedForAgainWhenItIsOld(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.VersionAge = time.Second })
	spec := g.spec(func(s *agentproto.Spec) { s.VersionCmd = "echo asked >>versions; wc -l <versions" })
	g.want("start", spec, 0, "")
	testenv.Eventually(t, agenttest.Patience, func() bool {
		for _, p := range g.engine.Processes() {
			if times, err := strconv.Atoi(strings.TrimSpace(p.Status.Version)); p.Key == spec.Key && err == nil {
				return times >= 3
			}
		}
		return false
	}, "the third version is reported")
}

// TestAProcessThatRunsAnotherExecutableIsAskedForItsVersion: a program that executes its
// successor retains its pid and start time.
func TestAProcessThatRunsAnotherExecutableIsAskedForItsVersion(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.AnswerAge = time.Second })
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = started("-successor next/demo")
		s.VersionCmd = "readlink /proc/$(cat demo.pid)/exe && echo asked >>versions"
	})
	reported := func() (pid int, version string) {
		for _, p := range g.engine.Processes() {
			if p.Key == spec.Key {
				return p.Status.PID, p.Status.Version
			}
		}
		return 0, "not reported"
	}
	first := g.want("start", spec, 0, "").Status.PID
	testenv.Eventually(t, agenttest.Patience, func() bool {
		_, version := reported()
		return version == filepath.Join(g.dir, demoName)
	}, "the version of the first executable is reported")
	prepared, next := t.TempDir(), filepath.Join(g.dir, "next")
	install(t, prepared, demoName)
	if err := os.Rename(prepared, next); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, agenttest.Patience, func() bool {
		pid, version := reported()
		return pid == first && version == filepath.Join(next, demoName)
	}, "the version of the second executable is reported under the same pid")
	if n := g.lines("versions"); n != 2 || g.starts() != 1 {
		t.Errorf("the version was asked for %d times after %d starts, want 2 after 1", n, g.starts())
	}
}

func TestStatusTellsVersionAndHealth(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.VersionCmd = "echo asked >>versions; echo; echo 1.2.3 for $PWD; echo more"
		s.HealthCmd = "echo asked >>healths; echo 'no upstream' >&2; exit 4"
	})
	if s := g.status(spec); s.Version != "" || s.Health != "" || g.lines("versions") != 0 {
		t.Fatalf("a process that does not run says %q and %q", s.Version, s.Health)
	}
	g.want("start", spec, 0, "")
	for range 3 {
		if s := g.status(spec); s.Version != "1.2.3 for "+g.dir || s.Health != "failed: exit=4; no upstream" {
			t.Fatalf("version is %q, health %q", s.Version, s.Health)
		}
	}
	if v, h := g.lines("versions"), g.lines("healths"); v != 1 || h != 1 {
		t.Fatalf("version was asked for %d times, health %d times, want once each", v, h)
	}
	reported := g.engine.Processes()
	if len(reported) != 1 || reported[0].Status.Version != "1.2.3 for "+g.dir || !strings.HasPrefix(reported[0].Status.Health, "failed") {
		t.Fatalf("reported is %+v", reported)
	}
	g.want("restart", spec, 0, "")
	if s := g.status(spec); s.Version == "" || g.lines("versions") != 2 {
		t.Fatalf("after a restart version is %q, asked for %d times", s.Version, g.lines("versions"))
	}
	g.want("stop", spec, 0, "")
}

func TestOldAnswersAreAskedForAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.AnswerAge = time.Nanosecond })
	spec := g.spec(func(s *agentproto.Spec) { s.VersionCmd = "echo asked >>versions; wc -l <versions" })
	g.want("start", spec, 0, "")
	for _, want := range []string{"1", "2", "3"} {
		if s := g.status(spec); strings.TrimSpace(s.Version) != want {
			t.Fatalf("version is %q, want %s", s.Version, want)
		}
	}
}

func TestStatusDoesNotWaitForCommandsThatHang(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.Inquiry, c.Timing.AnswerAge = time.Second, 5*time.Second })
	spec := g.spec(func(s *agentproto.Spec) {
		s.VersionCmd, s.HealthCmd = "[ -s hanging ] || echo $$ >hanging; exec sleep 600", "echo fine"
	})
	g.want("start", spec, 0, "")
	if s := g.status(spec); s.Version != "timeout" || s.PID == 0 {
		t.Fatalf("version is %q of pid %d", s.Version, s.PID)
	}
	var pid int
	g.eventually("the command has begun", func() bool {
		text, err := os.ReadFile(filepath.Join(g.dir, "hanging"))
		n, _ := fmt.Sscan(string(text), &pid)
		return err == nil && n == 1
	})
	g.eventually("the command is ended", func() bool {
		_, err := proc.Identify(pid)
		return errors.Is(err, proc.ErrGone)
	})
	g.becomes(spec, "health is known", func(s agentproto.Status) bool { return s.Health == "fine" && s.Version == "timeout" })
	g.want("stop", spec, 0, "")
}

func TestStatusDuringAnOperationAsksNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.VersionCmd = "echo asked >>versions; echo 1"
		s.ReloadCmd = "touch reloading; while [ ! -e go ]; do sleep 0.05; done"
		s.OpTimeoutMS = patience.Milliseconds()
	})
	g.want("start", spec, 0, "")
	reload := g.submit("reload", spec)
	g.eventually("it reloads", func() bool { return g.exists("reloading") })
	if s := g.status(spec); !strings.Contains(s.Evidence, "busy: reload") || s.Version != "" || !s.Running {
		t.Fatalf("status is %+v", s)
	}
	g.write("go", "")
	g.check(g.result(reload), 0, "")
	if s := g.status(spec); s.Version != "1" {
		t.Fatalf("version is %q", s.Version)
	}
}

func TestFailingHealthIsTold(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Timing.Health, c.Emit = 50*time.Millisecond, emitted.add })
	spec := g.spec(func(s *agentproto.Spec) {
		s.HealthCmd = "echo asked >>healths; [ ! -e sick ] || { echo I am sick; exit 1; }"
	})
	pid := g.want("start", spec, 0, "").Status.PID
	g.eventually("health is asked for", func() bool { return g.lines("healths") > maxUnhealthy })
	if n := len(emitted.of(agentproto.EventHealthFailed)); n != 0 {
		t.Fatalf("%d events of a healthy process", n)
	}
	for n := range 2 {
		g.write("sick", "")
		g.eventually("it is emitted", func() bool { return len(emitted.of(agentproto.EventHealthFailed)) == n+1 })
		asked := g.lines("healths")
		g.eventually("it is asked again", func() bool { return g.lines("healths") > asked+maxUnhealthy })
		if err := os.Remove(filepath.Join(g.dir, "sick")); err != nil {
			t.Fatal(err)
		}
		g.becomes(spec, "it is healthy again", func(s agentproto.Status) bool { return s.Health == "ok" })
	}
	if n := len(emitted.of(agentproto.EventHealthFailed)); n != 2 {
		t.Fatalf("%d events, want 2", n)
	}
	e := emitted.of(agentproto.EventHealthFailed)[0]
	if e.Key != spec.Key || e.ProcName != demoName || e.PID != pid || !strings.Contains(e.Message, "3 times in a row: failed: exit=1; I am sick") {
		t.Fatalf("event is %+v", e)
	}
	if s := g.status(spec); s.PID != pid || g.starts() != 1 {
		t.Fatalf("pid %d after %d starts, want %d still", s.PID, g.starts(), pid)
	}
}

func TestUnhealthyProcessIsRestartedIfItIsToBe(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Timing.Health, c.Emit = 50*time.Millisecond, emitted.add })
	spec := g.spec(func(s *agentproto.Spec) {
		s.HealthRestart, s.StopCmd = true, "touch stopping; "+term
		s.HealthCmd = "[ ! -e sick ] || { read pid <demo.pid; read sick <sick; [ $pid != $sick ]; }"
	})
	pid := g.want("start", spec, 0, "").Status.PID
	g.write("sick", fmt.Sprintln(pid))
	s := g.becomes(spec, "another one runs", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid && s.Health == "ok" })
	if g.starts() != 2 || !g.exists("stopping") || s.Failures != 1 || s.LastExit == nil || s.LastExit.Why != "health" {
		t.Fatalf("status after %d starts is %+v, last exit %+v", g.starts(), s, s.LastExit)
	}
	if n := len(emitted.of(agentproto.EventHealthFailed)); n != 1 {
		t.Fatalf("emitted %d times", n)
	}
}

func TestHealthIsToldOnceForThreeFailuresInARow(t *testing.T) {
	t.Parallel()
	fine, failed, unknown := answer{ran: true, ok: true}, answer{ran: true}, answer{text: "not run"}
	for _, c := range []struct {
		name    string
		answers []answer
		emitted int
	}{
		{"two failures", []answer{failed, failed}, 0},
		{"three", []answer{failed, failed, failed}, 1},
		{"not in a row", []answer{failed, failed, fine, failed, failed}, 0},
		{"more than three", []answer{failed, failed, failed, failed, failed, failed, failed}, 1},
		{"healthy in between", []answer{failed, failed, failed, fine, failed, failed, failed}, 2},
		{"commands that could not be run are no failures", []answer{unknown, unknown, unknown, unknown}, 0},
		{"and no health either", []answer{failed, unknown, failed, unknown, failed}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var h health
			emitted := 0
			for _, a := range c.answers {
				if h.count(a) {
					emitted++
				}
			}
			if emitted != c.emitted {
				t.Errorf("emitted %d times, want %d", emitted, c.emitted)
			}
		})
	}
}
