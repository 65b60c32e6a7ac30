package proc

import "testing"

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
