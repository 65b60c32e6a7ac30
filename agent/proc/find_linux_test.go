package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"golang.org/x/sys/unix"
)

// setup is one setup path with its pid file.
type setup struct {
	dir     string
	pidPath string
}

func newSetup(t *testing.T) setup {
	t.Helper()
	dir := t.TempDir()
	return setup{dir: dir, pidPath: filepath.Join(dir, "app.pid")}
}

func (s setup) target(name string) Target {
	return Target{ProcName: name, SetupPath: s.dir, PidPath: s.pidPath}
}

func (s setup) writePid(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(s.pidPath, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, target Target) Probe {
	t.Helper()
	return NewFinder(NewAccounts()).Find(t.Context(), target)
}

func wantProbe(t *testing.T, got Probe, verdict Verdict, evidence string) {
	t.Helper()
	if got.Verdict != verdict || !strings.Contains(got.Evidence, evidence) {
		t.Fatalf("got %s (%s), want %s with %q in the evidence", got.Verdict, got.Evidence, verdict, evidence)
	}
}

func TestPidFileNamesTheProcess(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "sleep")
	s.writePid(t, strconv.Itoa(h.id.PID)+"\n")
	got := find(t, s.target("app"))
	wantProbe(t, got, Running, "name and setup path match")
	if !got.UsedPidFile || got.Procs[0].Identity != h.id {
		t.Fatalf("got %+v, want the process %v by its pid file", got, h.id)
	}
}

func TestStalePidFileNamesAnotherProgram(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	other := t.TempDir()
	h := spawn(t, program(t, other, "other"), other, "sleep")
	s.writePid(t, strconv.Itoa(h.id.PID))
	got := find(t, s.target("app"))
	wantProbe(t, got, Stopped, "stale pid file")
	if !got.StalePidFile || len(got.Procs) != 0 {
		t.Fatalf("got %+v, want a stale pid file and no process", got)
	}
}

func TestStalePidFileNamesSameProgramElsewhere(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	other := t.TempDir()
	h := spawn(t, program(t, other, "app"), other, "sleep")
	s.writePid(t, strconv.Itoa(h.id.PID))
	wantProbe(t, find(t, s.target("app")), Stopped, "is another app")

	rooted := spawn(t, program(t, other, "app2"), "/", "sleep")
	s.writePid(t, strconv.Itoa(rooted.id.PID))
	wantProbe(t, find(t, s.target("app2")), Uncertain, "may or may not be the target's")
}

func TestPidFileMissingButProcessAlive(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), "/", "sleep")
	got := find(t, s.target("app"))
	wantProbe(t, got, Running, "does not exist")
	if got.UsedPidFile || got.Procs[0].Identity != h.id {
		t.Fatalf("got %+v, want %v by search", got, h.id)
	}
	target := s.target("app")
	target.Known = h.id
	wantProbe(t, find(t, target), Running, "known process")
	target.Exclude = func(p Process) bool { return p.PID == h.id.PID }
	target.Known = Identity{}
	wantProbe(t, find(t, target), Stopped, "does not exist")
}

func TestReusedPidIsNotTheKnownProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := spawn(t, program(t, dir, "app"), dir, "sleep")
	reused := h.id
	reused.Start--
	otherBoot := h.id
	otherBoot.BootID = "another boot"
	for _, id := range []Identity{reused, otherBoot} {
		wantProbe(t, find(t, Target{ProcName: "app", Known: id}), Stopped, "gone")
		if Alive(id) {
			t.Errorf("%v is alive", id)
		}
		if err := Signal(id, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if !Alive(h.id) {
		t.Fatal("the successor was signalled")
	}
}

func TestUnusablePidFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n \n", "garbage", "abc 12", "-1", "0", "1", "99999999999", "4194305", "12.5"} {
		s := newSetup(t)
		s.writePid(t, text)
		got := find(t, s.target("app"))
		wantProbe(t, got, Stopped, "no usable pid file")
		if got.StalePidFile {
			t.Errorf("%q: an unusable file is no proof of staleness", text)
		}
	}
	s := newSetup(t)
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		s.writePid(t, strconv.Itoa(pid))
		target := s.target(filepath.Base(os.Args[0]))
		target.SetupPath = ""
		wantProbe(t, find(t, target), Stopped, "stale pid file")
	}
}

func TestParsePidFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"4437": 4437, "4437\r\n": 4437, "\xef\xbb\xbf4437\n": 4437, "4437 nginx master\n": 4437,
		"\n\n 4437\n5000\n": 4437, "4437\x00\x00": 4437, "4437\t\n": 4437,
	} {
		if got, err := parsePidFile([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestOddPidFilesAreReadSafely(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"loop":      func(path string) error { return os.Symlink(path, path) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"huge":      func(path string) error { return sparse(path, 2<<30) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			if err := create(s.pidPath); err != nil {
				t.Fatal(err)
			}
			wantProbe(t, find(t, s.target("app")), Stopped, "no usable pid file")
		})
	}
}

func sparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

func TestHangingFileSystemDoesNotBlock(t *testing.T) {
	t.Parallel()
	w := newWatchdog()
	release := make(chan struct{})
	hang := func() int { <-release; return 1 }
	if _, err := guard(t.Context(), w, fileTimeout, "key", hang); !errors.Is(err, errFileBlocked) {
		t.Fatalf("got %v, want %v", err, errFileBlocked)
	}
	began := time.Now()
	for range 1000 {
		if _, err := guard(t.Context(), w, fileTimeout, "key", hang); !errors.Is(err, errFileBlocked) {
			t.Fatalf("got %v, want %v", err, errFileBlocked)
		}
	}
	if time.Since(began) > fileTimeout {
		t.Error("a path that is known to hang was waited for again")
	}
	if got, err := guard(t.Context(), w, fileTimeout, "other", func() int { return 2 }); got != 2 || err != nil {
		t.Errorf("another path: got %d, %v", got, err)
	}
	close(release)
	eventually(t, "the path answers again", func() bool {
		got, err := guard(t.Context(), w, fileTimeout, "key", hang)
		return got == 1 && err == nil
	})
}

// TestManyReadsAreNoHangingFileSystem: five hundred processes are searched at once, and each read
// is slow because the host is busy.
func TestManyReadsAreNoHangingFileSystem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog()
		var searches sync.WaitGroup
		for i := range 500 {
			searches.Go(func() {
				got, err := guard(t.Context(), w, fileTimeout, strconv.Itoa(i), func() int { time.Sleep(time.Second); return i })
				if got != i || err != nil {
					t.Errorf("search %d: got %d, %v", i, got, err)
				}
			})
		}
		searches.Wait()
	})
}

// TestHangingFileSystemsAreNotWaitedFor: every place belongs to a read that hangs.
func TestHangingFileSystemsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, release := newWatchdog(), make(chan struct{})
		var searches sync.WaitGroup
		for i := range maxReads {
			searches.Go(func() {
				if _, err := guard(t.Context(), w, fileTimeout, strconv.Itoa(i), func() int { <-release; return 1 }); !errors.Is(err, errFileBlocked) {
					t.Errorf("search %d: %v", i, err)
				}
			})
		}
		searches.Wait()
		began := time.Now()
		if _, err := guard(t.Context(), w, fileTimeout, "other", func() int { return 1 }); !errors.Is(err, errFileBlocked) || time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		close(release)
	})
}

func TestUnreadablePidFileIsUncertain(t *testing.T) {
	t.Parallel()
	blocked := files{err: os.ErrPermission}
	if !blocked.blocked() {
		t.Fatal("a pid file without permission must not count as missing")
	}
	s := &search{target: Target{ProcName: "app", PidPath: "/run/app.pid"}, uid: -1, files: blocked}
	if got := s.probe(); got.Verdict != Uncertain {
		t.Fatalf("got %+v, want uncertain", got)
	}
}

func TestThreadIDIsRejected(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), t.TempDir(), "thread")
	s.writePid(t, strconv.Itoa(h.ready))
	got := NewFinder(NewAccounts()).Find(t.Context(), Target{ProcName: "app", PidPath: s.pidPath})
	wantProbe(t, got, Stopped, "is a thread of pid "+strconv.Itoa(h.id.PID))
	if _, err := Identify(h.ready); err == nil {
		t.Error("a thread id got an identity")
	}
}

func TestZombieIsDead(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), t.TempDir(), "zombie-parent")
	s.writePid(t, strconv.Itoa(h.ready))
	got := find(t, Target{ProcName: "app", PidPath: s.pidPath})
	wantProbe(t, got, Stopped, "zombie")
}

func TestStoppedProcessIsRunning(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "sleep")
	s.writePid(t, strconv.Itoa(h.id.PID))
	if err := Signal(h.id, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is in state T", func() bool {
		got := find(t, s.target("app"))
		return got.Verdict == Running && got.Procs[0].State == 'T'
	})
}

func TestReplacedExecutable(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	path := program(t, s.dir, "app")
	h := spawn(t, path, "/", "sleep")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.writePid(t, strconv.Itoa(h.id.PID))
	wantProbe(t, find(t, s.target("app")), Running, "name and setup path match")
	if err := os.Remove(s.pidPath); err != nil {
		t.Fatal(err)
	}
	wantProbe(t, find(t, s.target("app")), Running, "found pid")
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a-program-with-a-long-name", "with spaces", "a) R (b", "服务进程"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			h := spawn(t, program(t, s.dir, name), s.dir, "sleep")
			s.writePid(t, strconv.Itoa(h.id.PID))
			wantProbe(t, find(t, s.target(name)), Running, "match")
			if err := os.Remove(s.pidPath); err != nil {
				t.Fatal(err)
			}
			wantProbe(t, find(t, s.target(name)), Running, "found pid")
		})
	}
}

func TestRenamedProcess(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	other := t.TempDir()
	before, err := NowTicks()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h := spawn(t, program(t, other, "wrapped"), other, "rename")
	s.writePid(t, strconv.Itoa(h.id.PID))
	target := s.target("app")
	wantProbe(t, find(t, target), Stopped, "stale")

	target.StartedAfter, target.PidFileAfter = before, began
	got := find(t, target)
	wantProbe(t, got, Running, "calls itself wrapped")
	if got.Alias != "wrapped" {
		t.Fatalf("got alias %q, want wrapped", got.Alias)
	}
	target.StartedAfter = h.id.Start + 1
	wantProbe(t, find(t, target), Stopped, "stale")
}

func TestBareNameProvesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spawn(t, program(t, dir, "app"), dir, "sleep")
	wantProbe(t, find(t, Target{ProcName: "app"}), Stopped, "neither setup path nor pid file")
	elsewhere := newSetup(t)
	wantProbe(t, find(t, Target{ProcName: "app", SetupPath: elsewhere.dir}), Stopped, "no app runs under")
}

func TestWithoutPathsOnlyWhatTheTargetStartedCounts(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	app, other := program(t, s.dir, "app"), program(t, s.dir, "other")
	c := s.command(t, fmt.Sprintf("%s & env -i %s=sleep %s & setsid env -i %s=sleep %s & wait", other, scenarioVar, app, scenarioVar, app))
	c.Env = map[string]string{scenarioVar: "sleep"}
	running, err := s.runner.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	leader := running.Identity()
	var inSession, outside Identity
	eventually(t, "all three run", func() bool {
		members, err := groupExcept(leader, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := readLocated(nil)
		if err != nil {
			t.Fatal(err)
		}
		others := 0
		for _, row := range rows {
			st, err := ReadStat(row.pid)
			id := Identity{BootID: leader.BootID, PID: row.pid, Start: st.Start}
			switch {
			case err != nil:
			case row.exe == other:
				others++
			case row.exe == app && st.Session == leader.PID:
				inSession = id
			case row.exe == app:
				outside = id
			}
		}
		return len(members) >= 3 && others == 1 && !inSession.IsZero() && !outside.IsZero()
	})
	t.Cleanup(func() { _ = Signal(outside, syscall.SIGKILL); _ = KillGroup(context.Background(), leader, 0) })

	wantProbe(t, find(t, Target{ProcName: "app", Mark: t.Name()}), Stopped, "started for this key")
	wantProbe(t, find(t, Target{ProcName: "other", Mark: "somebody's"}), Stopped, "started for this key")
	if got := find(t, Target{ProcName: "other", Mark: t.Name()}); got.Verdict != Running || !got.Marked || len(got.Procs) != 1 {
		t.Errorf("by its mark: %+v", got)
	}
	if got := find(t, Target{ProcName: "app", Command: leader}); got.Verdict != Running || len(got.Procs) != 1 || got.Procs[0].Identity != inSession {
		t.Errorf("by its session: %+v, want %v", got, inSession)
	}
	reused := leader
	reused.Start--
	wantProbe(t, find(t, Target{ProcName: "app", Command: reused}), Stopped, "started for this key")
}

func TestSearchPutsTheMasterFirst(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "workers=3")
	eventually(t, "master and workers are found", func() bool {
		got := find(t, s.target("app"))
		return got.Verdict == Running && len(got.Procs) == 4 && got.Procs[0].Identity == h.id
	})
}

func TestForeignProcessIsUncertainWithoutRoot(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.writePid(t, strconv.Itoa(os.Getpid()))
	hidden := &search{target: s.target("app"), boot: "boot", uid: 77}
	stale := func(string, ...any) judgement { return judgement{verdict: Stopped} }
	// Neither executable nor working directory could be read.
	if got := hidden.judge(Process{UID: 77}, "wrapper", stale); got.verdict != Uncertain {
		t.Errorf("user of the account: got %+v, want uncertain", got)
	}
	if got := hidden.judge(Process{UID: 78}, "wrapper", stale); got.verdict != Stopped {
		t.Errorf("another user: got %+v, want stopped", got)
	}
	hidden.files.written = time.Now().Add(time.Hour)
	if got := hidden.judge(Process{UID: 77}, "app", stale); got.verdict != Running {
		t.Errorf("kernel's name and user match: got %+v, want running", got)
	}
}

func TestHiddenProcessIsUncertain(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	s := newShop(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "sleep")
	s.write(t, "app.pid", strconv.Itoa(h.id.PID), 0o644)
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.dir, "app"))
	cmd.Env = append(os.Environ(), scenarioVar+"=find="+filepath.Join(s.dir, "app.pid"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "operation not permitted") || errors.Is(err, unix.EPERM) {
		testenv.Missing(t, "root", "mounting /proc needs CAP_SYS_ADMIN: %v %s", err, out)
	}
	if err != nil || !strings.HasPrefix(string(out), "uncertain: pid "+strconv.Itoa(h.id.PID)) {
		t.Fatalf("got %q, %v; want uncertain", out, err)
	}
}

func TestSetupPathThroughSymlink(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	link := filepath.Join(t.TempDir(), "current")
	if err := os.Symlink(s.dir, link); err != nil {
		t.Fatal(err)
	}
	spawn(t, program(t, s.dir, "app"), s.dir, "sleep")
	wantProbe(t, find(t, Target{ProcName: "app", SetupPath: link}), Running, "found pid")
}

func TestSearchLeavesOutWhatIsForeignWithItsChildren(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "workers=3")
	eventually(t, "master and workers run", func() bool { return len(find(t, s.target("app")).Procs) == 4 })
	target := s.target("app")
	target.Foreign = func(p Process, _ string) bool { return p.Identity == h.id }
	wantProbe(t, find(t, target), Stopped, "no usable pid file")
	s.writePid(t, strconv.Itoa(h.id.PID)) // the search still uses the pid file
	wantProbe(t, find(t, target), Running, "name and setup path match")
}

func TestSearchPrefersWhatCarriesTheMark(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	path := program(t, s.dir, "app")
	plain := exec.CommandContext(t.Context(), path)
	plain.Dir, plain.Env = s.dir, []string{scenarioVar + "=sleep"}
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Process.Kill(); _ = plain.Wait() })
	target := s.target("app")
	target.Mark = t.Name()
	eventually(t, "it is found without a mark", func() bool {
		got := find(t, target)
		return got.Verdict == Running && !got.Marked && got.Procs[0].PID == plain.Process.Pid
	})
	h := spawn(t, path, s.dir, "sleep")
	if got := find(t, target); !got.Marked || len(got.Procs) != 1 || got.Procs[0].Identity != h.id {
		t.Fatalf("got %+v, want only the marked %v", got, h.id)
	}
}
