package proc

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSignalReachesTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, send := range []func(Identity, syscall.Signal) error{Signal, signalByPid} {
		h := spawn(t, program(t, t.TempDir(), "app"), dir, "sleep")
		if err := send(h.id, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the process is gone", func() bool { return !Alive(h.id) })
		if err := Signal(h.id, syscall.SIGTERM); err != nil {
			t.Errorf("signalling a process that is gone: %v", err)
		}
	}
}

func TestSignalRefusesTheAgentAndPid1(t *testing.T) {
	t.Parallel()
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{0, -1, 1, os.Getpid()} {
		if err := Signal(Identity{BootID: boot, PID: pid}, syscall.SIGCONT); err == nil {
			t.Errorf("pid %d was signalled", pid)
		}
	}
}

func TestSignalRefusalNamesBothUsers(t *testing.T) {
	t.Parallel()
	err := explainSignal(Identity{PID: os.Getpid()}, unix.EPERM)
	if err == nil || !strings.Contains(err.Error(), "the agent as uid "+strconv.Itoa(os.Geteuid())) {
		t.Fatalf("got %v, want both uids", err)
	}
}

func TestWatcherTellsDeath(t *testing.T) {
	t.Parallel()
	for name, polling := range map[string]bool{"pidfd": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := NewWatcher()
			if err != nil {
				t.Fatal(err)
			}
			w.poll = polling
			defer func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}()
			h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "sleep")
			died, forgotten := make(chan Death, 2), make(chan Death, 2)
			if _, err := w.Add(h.id, func(d Death) { died <- d }); err != nil {
				t.Fatal(err)
			}
			stop, err := w.Add(h.id, func(d Death) { forgotten <- d })
			if err != nil {
				t.Fatal(err)
			}
			stop()
			stop()
			if err := Signal(h.id, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			got := <-died
			if got.Identity != h.id {
				t.Fatalf("got %v, want %v", got, h.id)
			}
			// This test has not waited for its child yet, so the kernel still returns the
			// exit status.
			if want := (Exit{Known: true, Signal: syscall.SIGKILL}); got.Exit != want || got.SignalName() != "SIGKILL" {
				t.Errorf("it ended by %+v, want %+v", got.Exit, want)
			}
			if _, err := w.Add(h.id, func(Death) {}); err == nil {
				t.Error("a process that is gone is watched")
			}
			if len(died)+len(forgotten) > 0 {
				t.Error("told twice, or told after the watch ended")
			}
		})
	}
}

func TestExitIsReadOfAZombieAndOfWhatWasReaped(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Exit{
		"exit 0":        {Known: true},
		"exit 3":        {Known: true, Code: 3},
		"kill -SEGV $$": {Known: true, Signal: syscall.SIGSEGV},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/bin/sh", "-c", "read line; "+name)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			id, err := Identify(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			pidfd, err := openPidfd(id)
			if err != nil {
				t.Fatal(err)
			}
			defer closeFD(pidfd)
			if got := howEnded(id, pidfd); got.Known {
				t.Errorf("while it runs it is said to have ended by %+v", got)
			}
			stdin.Close()
			eventually(t, "it has ended", func() bool { return !Alive(id) })
			if got := howEnded(id, -1); got != want {
				t.Errorf("of the zombie it is %+v, want %+v", got, want)
			}
			_ = cmd.Wait() // the error is the expected exit status
			// After the wait, some kernel versions still return the exit status.
			if got := howEnded(id, pidfd); got.Known && got != want {
				t.Errorf("after that it is %+v, want %+v", got, want)
			}
			if got := howEnded(id, -1); got.Known {
				t.Errorf("without a pidfd it is %+v", got)
			}
		})
	}
}

func TestWatcherCloseEndsWatches(t *testing.T) {
	t.Parallel()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "sleep")
	stop, err := w.Add(h.id, func(Death) { t.Error("told after Close") })
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if _, err := w.Add(h.id, func(Death) {}); err == nil {
		t.Error("a closed watcher accepts a watch")
	}
}

func TestKillTreeEndsWhatIgnoresTerm(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "ignore-term")
	if err := Signal(h.id, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := KillTree(t.Context(), h.id, KillScope{}); err != nil {
		t.Fatal(err)
	}
	if Alive(h.id) {
		t.Error("it survived")
	}
}

func TestKillTreeEndsWorkersAndStrays(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=4")
	bystander := spawn(t, program(t, t.TempDir(), "other"), t.TempDir(), "sleep")
	eventually(t, "four workers run", func() bool { return len(treeOf(t, h.id)) == 5 })
	// The main process dies first: two workers are left in its session, two in
	// sessions of their own, where only the mark finds them.
	if err := Signal(h.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the main process is gone", func() bool { return !Alive(h.id) })
	killed, err := KillTree(t.Context(), h.id, KillScope{
		Key:       t.Name(),
		Protected: func(pid int) bool { return pid == bystander.id.PID },
	})
	if err != nil || len(killed) != 4 {
		t.Fatalf("killed %v, %v; want the four workers", killed, err)
	}
	if !Alive(bystander.id) {
		t.Error("a protected process was killed")
	}
}

func TestKillTreeSparesProtectedBranch(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=2")
	eventually(t, "two workers run", func() bool { return len(treeOf(t, h.id)) == 3 })
	var spared Identity
	for _, st := range treeOf(t, h.id) {
		if st.PPID == h.id.PID {
			spared = Identity{BootID: h.id.BootID, PID: st.PID, Start: st.Start}
		}
	}
	scope := KillScope{Protected: func(pid int) bool { return pid == spared.PID }}
	if killed, err := KillTree(t.Context(), h.id, scope); err != nil || len(killed) != 2 {
		t.Fatalf("killed %v, %v; want two", killed, err)
	}
	if !Alive(spared) {
		t.Error("the protected branch was killed")
	}
}

func TestKillTreeTellsWhenTheRootIsProtected(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=1")
	eventually(t, "the worker runs", func() bool { return len(treeOf(t, h.id)) == 2 })
	scope := KillScope{Protected: func(pid int) bool { return pid == h.id.PID }}
	if killed, err := KillTree(t.Context(), h.id, scope); err == nil || len(killed) > 0 || !Alive(h.id) {
		t.Fatalf("killed %v, %v", killed, err)
	}
	// A worker can be killed alone, while its protected parent still runs.
	worker := treeOf(t, h.id)[1]
	root := Identity{BootID: h.id.BootID, PID: worker.PID, Start: worker.Start}
	if _, err := KillTree(t.Context(), root, scope); err != nil || Alive(root) || !Alive(h.id) {
		t.Fatalf("worker alive: %t, parent alive: %t, %v", Alive(root), Alive(h.id), err)
	}
}

func TestKillTreeRefusesTheAgentsAncestors(t *testing.T) {
	t.Parallel()
	parent, err := Identify(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	if killed, err := KillTree(t.Context(), parent, KillScope{}); err == nil {
		t.Fatalf("killed %v", killed)
	}
}

func TestKillTreeOutrunsForkBomb(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "bomb"), t.TempDir(), "bomb=0")
	eventually(t, "it multiplies", func() bool { return len(treeOf(t, h.id)) > 4 })
	// One call takes at most two seconds, which a busy machine may need for one round.
	eventually(t, "the tree is killed", func() bool {
		_, err := KillTree(t.Context(), h.id, KillScope{Key: t.Name()})
		return err == nil
	})
	strays, err := NewFinder(NewAccounts()).Orphans(KillScope{Key: t.Name()})
	if err != nil || len(strays) > 0 {
		t.Fatalf("left over: %v, %v", strays, err)
	}
}

func TestKillGroupSparesTheMainProcess(t *testing.T) {
	t.Parallel()
	// Two of the four workers stay in the group of their parent.
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=4")
	var members []Process
	eventually(t, "the group is complete", func() (complete bool) {
		members, _ = groupExcept(h.id, nil)
		return len(members) == 3 && len(treeOf(t, h.id)) == 5
	})
	keep := members[len(members)-1].Identity
	for _, p := range members {
		if p.PID != h.id.PID {
			keep = p.Identity
		}
	}
	if err := KillGroup(t.Context(), h.id, time.Second, keep); err != nil {
		t.Fatal(err)
	}
	if Alive(h.id) || !Alive(keep) {
		t.Errorf("leader alive: %t, kept alive: %t", Alive(h.id), Alive(keep))
	}
	left, err := groupExcept(h.id, nil)
	if err != nil || len(left) != 1 || left[0].Identity != keep {
		t.Errorf("left in the group: %v, %v; want %v", left, err, keep)
	}
}

func TestKillGroupEscalates(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "ignore-term")
	if err := KillGroup(context.Background(), h.id, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if Alive(h.id) {
		t.Error("it survived")
	}
}

func treeOf(t *testing.T, root Identity) []Stat {
	t.Helper()
	table, err := ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	return table.Tree(root)
}

func BenchmarkThousandStats(b *testing.B) {
	id, err := Identify(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for range 1000 {
			if !Alive(id) {
				b.Fatal("the benchmark is dead")
			}
		}
	}
}

func BenchmarkReadTable(b *testing.B) {
	for b.Loop() {
		if _, err := ReadTable(); err != nil {
			b.Fatal(err)
		}
	}
}
