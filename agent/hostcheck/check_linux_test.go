package hostcheck

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/internal/testenv"
)

// firstVar makes the test binary the first process of a PID namespace: "reap"
// or "leave".
const firstVar = "PROCFLEET_HOSTCHECK_FIRST"

func TestMain(m *testing.M) {
	if how := os.Getenv(firstVar); how != "" {
		playFirst(how)
		return
	}
	os.Exit(m.Run())
}

func playFirst(how string) {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if how == "reap" {
		go proc.ReapOrphans(context.Background())
	}
	if f := checkReaping(context.Background(), Host{}); f != nil {
		fmt.Printf("%s: %s\n", f.Check, f.Problem)
		return
	}
	fmt.Println("good")
}

func TestFirstProcessThatDoesNotReapIsFound(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // for a PID namespace
	for how, want := range map[string]string{"reap": "good", "leave": "reaping: process 1 does not reap orphans"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), firstVar+"="+how)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %v, said %q", how, err, out)
		}
	}
}

func TestUnitOfAProcess(t *testing.T) {
	t.Parallel()
	for cgroups, want := range map[string]string{
		"0::/system.slice/procfleet-agent.service\n":                                 "procfleet-agent.service",
		"0::/system.slice/procfleet-agent.service/inner\n":                           "procfleet-agent.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/agent.service\n": "agent.service of a user",
		"0::/user.slice/user-0.slice/session-3.scope\n":                              "",
		"0::/\n": "",
		"12:memory:/docker/abc\n1:name=systemd:/system.slice/agent.service\n0::/x.service\n": "agent.service",
		"garbage": "",
	} {
		unit, ofUser := unitOf(cgroups)
		if ofUser {
			unit += " of a user"
		}
		if unit != want {
			t.Errorf("%q is in %q, want %q", cgroups, unit, want)
		}
	}
}

const safeUnit = "LoadState=loaded\nKillMode=process\nOOMPolicy=continue\nTasksMax=infinity\nMemoryMax=infinity\n" +
	"NoNewPrivileges=no\nPrivateTmp=no\nProtectSystem=no\nProtectHome=no\n"

func TestUnitIsJudgedByItsProperties(t *testing.T) {
	t.Parallel()
	if found := findingsOf("a.service", safeUnit); found != nil {
		t.Errorf("a safe unit: %+v", found)
	}
	for change, want := range map[string]string{
		"KillMode=control-group": KillMode, "KillMode=mixed": KillMode, "KillMode=none": "",
		"OOMPolicy=stop": UnitLimits, "TasksMax=4915": UnitLimits, "MemoryMax=1073741824": UnitLimits,
		"NoNewPrivileges=yes": UnitSandbox, "PrivateTmp=yes": UnitSandbox, "ProtectSystem=full": UnitSandbox, "ProtectHome=read-only": UnitSandbox,
	} {
		name, _, _ := strings.Cut(change, "=")
		var lines []string
		for line := range strings.Lines(safeUnit) {
			if strings.HasPrefix(line, name+"=") {
				line = change + "\n"
			}
			lines = append(lines, line)
		}
		found := findingsOf("a.service", strings.Join(lines, ""))
		switch {
		case want == "" && found != nil, want != "" && len(found) != 1:
			t.Errorf("%s: %+v", change, found)
		case want != "" && (found[0].Check != want || !strings.Contains(found[0].Problem, "a.service has "+change) || found[0].Consequence == "" || found[0].Remedy == ""):
			t.Errorf("%s: %+v", change, found[0])
		}
	}
	if found := findingsOf("a.service", "LoadState=not-found\nKillMode=control-group\n"); found != nil {
		t.Errorf("a unit that is not there: %+v", found)
	}
	if found := findingsOf("a.service", "LoadState=loaded\nKillMode=process\n"); found != nil {
		t.Errorf("a systemd that knows less: %+v", found)
	}
}

func TestHiddenProcesses(t *testing.T) {
	t.Parallel()
	for mounts, want := range map[string]bool{
		"proc /proc proc rw,nosuid 0 0\n":                                         false,
		"proc /proc proc rw,hidepid=0 0 0\n":                                      false,
		"proc /proc proc rw,gid=5,hidepid=2 0 0\n":                                true,
		"proc /proc proc rw,hidepid=invisible 0 0\n":                              true,
		"proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n":              false,
		"proc /mnt/proc proc rw,hidepid=2 0 0\nproc /proc proc rw,relatime 0 0\n": false,
	} {
		if got := hidesProcs(mounts); got != want {
			t.Errorf("%q: %v", mounts, got)
		}
	}
}

func TestFileLimitIsTheHardOne(t *testing.T) {
	t.Parallel()
	const head = "Limit                     Soft Limit           Hard Limit           Units     \n"
	for limits, want := range map[string]uint64{
		head + "Max open files            1024                 4096                 files     \n": 4096,
		head + "Max open files            1024                 unlimited            files     \n": 0,
		head: 0,
	} {
		hard, limited := openFiles(limits)
		if hard != want || limited != (want != 0) {
			t.Errorf("%q: %d %v", limits, hard, limited)
		}
	}
	if f := checkFileLimit(t.Context(), Host{PID: limitedSleeper(t)}); f == nil || !strings.Contains(f.Problem, "may have 100 files open") {
		t.Errorf("a limit of 100: %+v", f)
	}
}

// limitedSleeper starts a process with a low limit of open files.
func limitedSleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 100}, nil); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestDataFolderInMemoryIsFound(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		testenv.Missing(t, "shm", "/dev/shm is no tmpfs here")
	}
	f := checkDataFolder(t.Context(), Host{DataDir: "/dev/shm/not/yet/there"})
	if f == nil || f.Check != DataFolder || !strings.Contains(f.Problem, "is on tmpfs") {
		t.Errorf("%+v", f)
	}
	if f := checkDataFolder(t.Context(), Host{}); f != nil {
		t.Errorf("no folder: %+v", f)
	}
}

func TestExistingFolderAboveOneThatIsNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for in, want := range map[string]string{
		dir: dir, filepath.Join(dir, "a/b/c"): dir, "/no-such-folder/x": "/", "no-such-folder/x": ".",
	} {
		if got := existing(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestUnitIsReadFromSystemd(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >" + dir + "/args\ncat <<EOF\n" + strings.Replace(safeUnit, "KillMode=process", "KillMode=control-group", 1) + "EOF\n"
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	found := Unit(t.Context(), 0)
	if len(found) != 1 || found[0].Check != KillMode || !strings.HasPrefix(found[0].Problem, "procfleet-agent.service has KillMode=control-group") {
		t.Errorf("%+v", found)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || !slices.Contains(strings.Fields(string(args)), "--property=KillMode") || !strings.HasSuffix(string(args), "-- procfleet-agent.service\n") {
		t.Errorf("asked %q (%v)", args, err)
	}
}

func TestCheckEnds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	found := Check(t.Context(), Host{PID: os.Getpid(), DataDir: t.TempDir()})
	t.Logf("%v: %+v", time.Since(began), found)
	for _, f := range found {
		if f.Check == "" || f.Problem == "" || f.Consequence == "" || f.Remedy == "" {
			t.Errorf("half a finding: %+v", f)
		}
	}
}
