package proc

import (
	"os/exec"
	"testing"
)

func TestSearchReadsNeitherZombiesNorKernelThreads(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	zombie := child.Process.Pid
	eventually(t, "it is a zombie", func() bool { st, err := ReadStat(zombie); return err == nil && st.State == 'Z' })
	rows, err := readLocated(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if st, err := ReadStat(row.pid); row.pid == zombie || err == nil && st.Kernel {
			t.Errorf("row %+v is of pid %d, state %c, kernel thread %t", row, row.pid, st.State, st.Kernel)
		}
	}
}

// The kernel may reuse a pid for another process after the search has read the paths of all
// processes and before it compares them.
func TestSearchLooksAgainWhereAProcessIs(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	other := t.TempDir()
	h := spawn(t, program(t, other, "app"), other, "sleep")
	finder := NewFinder(NewAccounts())
	finder.located.read = func() ([]located, error) {
		return []located{{pid: h.id.PID, exe: s.dir + "/app", cwd: s.dir}}, nil
	}
	wantProbe(t, finder.Find(t.Context(), Target{ProcName: "app", SetupPath: s.dir}), Stopped, "no app runs")
}

func TestSearchDoesNotReadWhatOtherTargetsHave(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	h := spawn(t, program(t, s.dir, "app"), s.dir, "workers=3")
	target := Target{ProcName: "app", SetupPath: s.dir}
	eventually(t, "master and workers run", func() bool { return len(find(t, target).Procs) == 4 })
	finder := NewFinder(NewAccounts())
	finder.Managed = func() map[int]bool { return map[int]bool{h.id.PID: true} }
	rows, err := finder.located.get()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.pid == h.id.PID && row.exe != "" {
			t.Errorf("the paths of a managed process were read: %+v", row)
		}
	}
	if got := finder.Find(t.Context(), target); len(got.Procs) != 4 || got.Procs[0].Identity != h.id {
		t.Errorf("got %+v, want the target's own process with its workers", got)
	}
	target.Claimed = func(pid int) bool { return pid == h.id.PID }
	target.Foreign = func(p Process, _ string) bool { return p.Identity == h.id }
	wantProbe(t, finder.Find(t.Context(), target), Stopped, "no app runs")
}
