package proc

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestIdentityIsOfOneProcess(t *testing.T) {
	h := start(t, "one.exe", "sleep")
	again, err := Identify(h.id.PID)
	if err != nil || again != h.id {
		t.Fatalf("identified as %+v and then as %+v: %v", h.id, again, err)
	}
	if !Alive(h.id) {
		t.Error("it is not alive")
	}
	other := h.id
	other.Start--
	if Alive(other) {
		t.Error("an earlier holder of its pid is alive")
	}
	if err := Signal(other, syscall.SIGKILL); err != nil {
		t.Errorf("end an earlier holder of its pid: %v", err)
	}
	if !Alive(h.id) {
		t.Fatal("a process was ended by the identity of an earlier holder of its pid")
	}
	if err := Signal(h.id, syscall.SIGTERM); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SIGTERM: %v", err)
	}
	if err := Signal(h.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !Alive(h.id) }, "it is gone though this test holds it")
}

func TestTableSaysWhatAProcessSays(t *testing.T) {
	h := start(t, "row.exe", "sleep")
	table, err := ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(table.stats, func(st Stat) bool { return st.PID == h.id.PID })
	if i < 0 {
		t.Fatal("the process is not in the table")
	}
	row := table.stats[i]
	if table.identity(row) != h.id || row.PPID != os.Getpid() || row.Comm != "row.exe" || row.RSSPages == 0 || row.Threads == 0 {
		t.Errorf("the row is %+v, the process %+v", row, h.id)
	}
	st, err := ReadStat(h.id.PID)
	if err != nil || st.PPID != os.Getpid() || st.Comm != "row.exe" || st.Start != h.id.Start {
		t.Errorf("read alone it is %+v: %v", st, err)
	}
}

func TestDeathIsTold(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	h, other := start(t, "dies.exe", "sleep"), start(t, "lives.exe", "sleep")
	died := make(chan Identity, 2)
	for _, id := range []Identity{h.id, other.id} {
		if _, err := w.Add(id, func(d Death) { died <- d.Identity }); err != nil {
			t.Fatal(err)
		}
	}
	h.kill()
	select {
	case id := <-died:
		if id != h.id {
			t.Errorf("told of %s, not of %s", id, h.id)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was told")
	}
	if _, err := w.Add(h.id, func(Death) {}); !errors.Is(err, ErrGone) {
		t.Errorf("watching what is gone: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	other.kill()
	if len(died) != 0 {
		t.Error("told of a death after Close")
	}
}

func TestProcessIsFoundByPidFileAndByPlace(t *testing.T) {
	h := start(t, "Found.exe", "sleep", KeyMark+"=somebody")
	pidFile := filepath.Join(h.dir, "found.pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(h.id.PID)+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	finder := NewFinder(NewAccounts())
	for name, target := range map[string]Target{
		"pid file":           {ProcName: "found", SetupPath: h.dir, PidPath: pidFile},
		"place":              {ProcName: "found.exe", SetupPath: strings.ToUpper(h.dir)},
		"known":              {ProcName: "found", SetupPath: h.dir, Known: h.id},
		"mark, and no place": {ProcName: "found", Mark: "somebody"},
	} {
		probe := finder.Find(t.Context(), target)
		if probe.Verdict != Running || probe.Procs[0].Identity != h.id {
			t.Errorf("by %s: %s %+v (%s)", name, probe.Verdict, probe.Procs, probe.Evidence)
		}
	}
	for name, target := range map[string]Target{
		"another name":  {ProcName: "other", SetupPath: h.dir, PidPath: pidFile},
		"another place": {ProcName: "found", SetupPath: t.TempDir()},
		"another mark":  {ProcName: "found", Mark: "else"},
	} {
		if probe := finder.Find(t.Context(), target); probe.Verdict != Stopped {
			t.Errorf("by %s: %s %+v (%s)", name, probe.Verdict, probe.Procs, probe.Evidence)
		}
	}
}

func TestTreeIsKilled(t *testing.T) {
	h := start(t, "tree.exe", "parent")
	pid, err := strconv.Atoi(h.line)
	if err != nil {
		t.Fatal(err)
	}
	child, err := Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	killed, err := KillTree(t.Context(), h.id, KillScope{})
	if err != nil || len(killed) < 2 {
		t.Fatalf("killed %+v: %v", killed, err)
	}
	if Alive(h.id) || Alive(child) {
		t.Error("something of the tree lives")
	}
}

func TestFactsOfAProcess(t *testing.T) {
	h := start(t, "facts.exe", "sleep")
	host, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	if host.MemTotal == 0 || host.CPUs == 0 || host.BootID == "" {
		t.Errorf("host %+v", host)
	}
	facts, err := Describe(h.id, host, Sample{})
	if err != nil {
		t.Fatal(err)
	}
	if facts.Name != "facts.exe" || facts.RSS == 0 || !strings.Contains(facts.Cmdline, "facts.exe") || facts.Elapsed > time.Hour {
		t.Errorf("facts %+v", facts)
	}
	if _, err := readPSS(h.id); err != nil {
		t.Error(err)
	}
	if busy, err := ReadCPUTime(); err != nil || busy.Total == 0 {
		t.Errorf("CPU time %+v: %v", busy, err)
	}
}
