package proc

import (
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func readHost(t *testing.T) Host {
	t.Helper()
	host, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	return host
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	host := readHost(t)
	dir := t.TempDir()
	h := spawn(t, program(t, dir, "app"), dir, "sleep")
	first, err := Describe(h.id, host, Sample{})
	if err != nil {
		t.Fatal(err)
	}
	if first.Name != "app" || first.Cmdline != dir+"/app" || first.State == "" || first.Threads < 1 || first.RSS <= 0 {
		t.Errorf("got %+v", first)
	}
	if first.RSSPercent <= 0 || first.RSSPercent > 100 || first.CPUPercent != first.CPUPercentAll {
		t.Errorf("got %+v, want a memory share and the average CPU", first)
	}
	if first.Elapsed%time.Second != 0 || time.Since(first.StartedAt) < first.Elapsed {
		t.Errorf("elapsed %s, started %s", first.Elapsed, first.StartedAt)
	}
	earlier := first.Sample
	earlier.CPU -= time.Hour
	eventually(t, "a second sample counts", func() bool {
		second, err := Describe(h.id, host, earlier)
		return err == nil && second.CPUPercent > second.CPUPercentAll
	})
	if err := Signal(h.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is gone", func() bool { return !Alive(h.id) })
	if _, err := Describe(h.id, host, Sample{}); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if _, err := readPSS(h.id); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
}

func TestPSSIsAtMostRSS(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "sleep")
	pss, err := readPSS(h.id)
	if err != nil || pss <= 0 || pss > readHost(t).MemTotal {
		t.Fatalf("got %d, %v", pss, err)
	}
}

func TestReadHost(t *testing.T) {
	t.Parallel()
	host := readHost(t)
	if host.BootID == "" || host.CPUs < 1 || host.MemTotal <= 0 ||
		host.MemAvailable <= 0 || host.MemAvailable > host.MemTotal>>10 {
		t.Errorf("got %+v", host)
	}
}

func TestPercentOfHost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cpu, elapsed time.Duration
		cpus         int
		want         float64
	}{
		{time.Second, time.Second, 16, 6.25},
		{time.Second, time.Second, 1, 100},
		{0, time.Second, 4, 0},
		{time.Second, 0, 4, 0},
		{-time.Second, time.Second, 4, 0},
		{time.Second, time.Second, 0, 0},
	} {
		if got := percentOfHost(test.cpu, test.elapsed, test.cpus); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%v: got %g", test, got)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-1,8,10-11": 5, "": 0, "3-1": 0, "x": 0} {
		if got := countCPUs(list); got != want {
			t.Errorf("%q: got %d, want %d", list, got, want)
		}
	}
}

func TestCommandLinesAreCutAsText(t *testing.T) {
	t.Parallel()
	got := firstBytes(strings.Repeat("进", maxFactsCmdline), maxFactsCmdline)
	if !utf8.ValidString(got) || len(got) > maxFactsCmdline || len(got) < maxFactsCmdline-utf8.UTFMax {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestTreeSumsDescendants(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=3")
	eventually(t, "three workers run", func() bool { return len(treeOf(t, h.id)) == 4 })
	tree := treeOf(t, h.id)
	if tree[0].PID != h.id.PID || tree[0].RSS() <= 0 {
		t.Errorf("got %+v, want the root first", tree[0])
	}
	other := h.id
	other.Start++
	if tree := treeOf(t, other); len(tree) != 0 {
		t.Errorf("another process with the pid: got %+v", tree)
	}
	if tree := treeOf(t, Identity{PID: os.Getpid()}); len(tree) != 0 {
		t.Errorf("another boot: got %+v", tree)
	}
}

func TestLoadIsThatSinceTheReadingBefore(t *testing.T) {
	t.Parallel()
	at := func(line string) CPUTime {
		t.Helper()
		reading, err := parseCPUTime([]byte(line + "\ncpu0 1 2 3 4"))
		if err != nil {
			t.Fatal(err)
		}
		return reading
	}
	h := Host{MemTotal: 1000 << 10, MemAvailable: 250}
	// user nice system idle iowait irq softirq steal guest guest_nice
	first := at("cpu  300 0 100 500 100 0 0 0 300 0")
	for _, tt := range []struct {
		name    string
		earlier CPUTime
		line    string
		cpu     float64
		fresh   bool
	}{
		{"since the start", CPUTime{}, "cpu  300 0 100 500 100 0 0 0 300 0", 40, true},
		{"since the reading before", first, "cpu  400 0 150 550 100 0 0 0 400 0", 75, true},
		{"kernels that tell less", CPUTime{}, "cpu  300 0 100 600", 40, true},
		{"iowait may go back", first, "cpu  300 0 100 900 50 0 0 0 300 0", 0, true},
		{"too soon", first, "cpu  301 0 100 500 100 0 0 0 300 0", 0, false},
		{"going back", first, "cpu  100 0 100 500 100 0 0 0 300 0", 0, false},
	} {
		l, fresh := h.LoadSince(tt.earlier, at(tt.line))
		if l.CPU != tt.cpu || fresh != tt.fresh || l.Memory != 75 {
			t.Errorf("%s: %+v %v, want %v %v and 75 %% of the memory", tt.name, l, fresh, tt.cpu, tt.fresh)
		}
	}
	for _, bad := range []string{"", "cpu", "cpu  1 2 x 4", "intr 1 2 3 4 5"} {
		if got, err := parseCPUTime([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestLoadOfThisHost(t *testing.T) {
	t.Parallel()
	now, err := ReadCPUTime()
	if err != nil {
		t.Fatal(err)
	}
	host, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	l, fresh := host.LoadSince(CPUTime{}, now)
	if !fresh || l.CPU <= 0 || l.CPU > 100 || l.Memory <= 0 || l.Memory > 100 {
		t.Errorf("load since the start is %+v, %v", l, fresh)
	}
}
