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
	eventually(t, "it is a zombie", func() bool { st, err := readStat(zombie); return err == nil && st.State == 'Z' })
	rows, err := readLocated()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if st, err := readStat(row.pid); row.pid == zombie || err == nil && st.Kernel {
			t.Errorf("row %+v is of pid %d, state %c, kernel thread %t", row, row.pid, st.State, st.Kernel)
		}
	}
}

// A pid may be given to another process between the reading of the host and the
// look at its rows.
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
