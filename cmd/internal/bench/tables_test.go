package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
)

const msec = time.Millisecond

// cpuOf are processor times of each process.
func cpuOf(each time.Duration) map[string]time.Duration {
	cpu := map[string]time.Duration{client: each}
	for _, name := range processNames() {
		cpu[name] = each
	}
	return cpu
}

// peakOf is resident memory of each process.
func peakOf(each int) map[string]int {
	peak := map[string]int{}
	for _, name := range processNames() {
		peak[name] = each
	}
	return peak
}

func fannedIn(path time.Duration) fanned {
	return fanned{floor: floor{request: msec, results: 2 * msec, script: msec}, floorCPU: msec, operated: operated{accept: msec, path: path}, cpu: cpuOf(2 * msec)}
}

// quotient names a column with a ratio, and the columns of its dividend and divisor.
type quotient struct{ column, of, by string }

// TestTablesAreTheArithmeticOfTheirSamples: every row has a cell for each column, a ratio is
// the quotient of two other columns, the figure is the median of the samples, and goals are
// compared with it. The benchmarks themselves run in the long form.
func TestTablesAreTheArithmeticOfTheirSamples(t *testing.T) {
	t.Parallel()
	three := func(d time.Duration) []time.Duration { return []time.Duration{5 * d, d, 2 * d} }
	fanout := func(hosts int, path time.Duration) fannedOut {
		return fannedOut{hosts: hosts, samples: []fanned{fannedIn(9 * path), fannedIn(path), fannedIn(path / 2)}, peak: peakOf(100 << 20)}
	}
	big := []fannedOut{fanout(10_000, 6*msec), fanout(100_000, 66*msec)}
	runs := []smallRun{{smallFloor{store: msec, queue: msec, pull: msec, request: msec, script: msec}, 10 * msec, cpuOf(10 * msec)}}
	runs[0].cpu[upName] = 10 * msec
	times := &latencies{idle: three(10 * msec), busy: three(30 * msec), floor: smallFloor{store: 6 * msec, script: 6 * msec}}
	together := &concurrentTasks{idle: three(msec), busy: three(3 * msec), least: [len(marks)][]int{{20, 10, 30}, {45, 40, 50}, {60, 70, 50}}, ends: [2][]time.Duration{three(msec), three(msec)}}
	accepted1, acceptedBig, keyed := newAcceptTable(), newAcceptTable(), newAcceptTable()
	addAccepted(accepted1, acceptCase{hosts: 1, action: procfleet.ActionStatus}, []accepted{{msec, msec, 5 * msec}, {msec, msec, 7 * msec}, {msec, msec, 9 * msec}})
	addAccepted(acceptedBig, acceptCase{hosts: acceptBigHosts, action: procfleet.ActionStart}, []accepted{{msec, msec, 50 * msec}})
	addAccepted(keyed, acceptCase{hosts: 1, action: procfleet.ActionStatus, keyed: true}, []accepted{{msec, msec, 5 * msec}})
	rolling := Rollout{Hosts: 60, Latency: time.Second}
	rollout := rolling.table()
	rolling.add(rollout, 10, []rolled{{path: 12 * msec, floor: 10 * msec, occupancy: 99, reuse: msec, slow: 2 * msec}, {path: 10 * msec, floor: 10 * msec, occupancy: 50, reuse: time.Minute, slow: time.Hour}})
	safety := Safety{Hosts: 10_000}.table()
	for _, secure := range []Secure{{}, secureAll} {
		addSafety(safety, secure, &big[0])
	}
	s := &standing{Presence: Presence{Hosts: 1200, Areas: 5, Tasks: 100}, steps: []step{{"announce", 3, 1200, 3 * msec, msec, 12_000}, {"list", 1, 0, msec, 0, 0}}}
	readings := []*reading{
		{what: counters, items: 1, bytes: 2048, peak: 1 << 20, floor: three(msec), took: three(msec)},
		{what: counters, items: mapItems, bytes: 2048, peak: 1 << 20, floor: three(msec), took: three(2 * msec)},
		{what: onePage, items: mapItems, bytes: 2048, peak: 1 << 20, floor: three(msec), took: three(2 * msec)},
		{what: gseMap, items: mapItems, bytes: 2048, peak: 1 << 20, floor: three(msec), took: three(40 * msec)},
	}
	lists := make([][]time.Duration, 3)
	for i := range fleetLists {
		for run := range lists {
			lists[run] = append(lists[run], time.Duration(i*20+1+run)*msec)
		}
	}
	found := &findings{
		upkeeps: []upkeep{{"agent", 0, 0.01, 20 << 20, 0, idleGoal}, {"agent", 1000, 0.02, 50 << 20, 0.01, 0}, {"supervisord", 1000, 0.1, 1 << 20, 0, 0}},
		deaths:  []deaths{{"agent", three(msec), three(2 * msec)}},
		series:  []series{{"adoption", 1000, time.Second, 12, 0}, {"burst", 5000, 3 * time.Second, 0, time.Second}},
		program: 22 << 20,
	}
	for name, tt := range map[string]struct {
		table *Table
		ratio quotient
		met   []string // the cells of "met" and their kind, of all rows in order
	}{
		"fanout":      {Fanout{Action: procfleet.ActionStop}.times(big), quotient{"ratio", "path", "floor"}, []string{"yes", ""}},
		"fanout cost": {fanCost(big), quotient{}, []string{"", "yes"}},
		"slow fanout": {Fanout{Action: procfleet.ActionStop}.times([]fannedOut{fanout(10_000, 9*msec)}), quotient{"ratio", "path", "floor"}, []string{"**no**"}},
		"status":      {Fanout{Action: procfleet.ActionStatus}.times(big[:1]), quotient{"ratio", "path", "floor"}, []string{""}},
		"safety":      {safety, quotient{"ratio", "path", "floor"}, nil},
		"cancel":      {Cancel{Hosts: 300}.table([]controlled{{2 * msec, 3 * msec, 9 * msec, msec}}), quotient{"ratio", "time", "floor"}, []string{"yes", "**no**"}},
		"small":       {Small{Tasks: 100, InFlight: 4}.rates(runs), quotient{"of floor", "tasks", "floor"}, []string{"yes"}},
		"small cost":  {Small{Tasks: 100}.costs(runs), quotient{}, nil},
		"small alone": {Small{Samples: 3, Beside: 300}.times(times), quotient{}, []string{"", "**no**", "yes", ""}},
		"embedded":    {Embedded{Tasks: 100, InFlight: 4}.table(runs), quotient{"of floor", "tasks", "floor"}, nil},
		"accept":      {accepted1, quotient{"ratio", "median", "floor"}, []string{"**no**"}},
		"accept many": {acceptedBig, quotient{"ratio", "median", "floor"}, []string{"yes"}},
		"accept key":  {keyed, quotient{"ratio", "median", "floor"}, []string{""}},
		"poll":        {pollTable(readings), quotient{"ratio", "median", "floor"}, []string{"", "**no**", "yes", "**no**"}},
		"shares":      {Fair{Tasks: 2, Hosts: 300}.shares(together), quotient{"ratio", "the slowest has, %", "when the first has, %"}, []string{"", "yes", ""}},
		"singles":     {Fair{Tasks: 2, Hosts: 300}.singles(together), quotient{}, []string{"", "yes"}},
		"areas":       {Fair{Area: 300}.areas([]outageTimes{{"nothing", three(msec)}, {"silent", three(9 * msec)}, {"again", three(msec)}}), quotient{}, []string{"", "**no**", ""}},
		"workers":     {Workers{Hosts: 300, Config: Config{Runs: 2}}.table([]worked{{msec, 1, 4 * msec, cpuOf(msec), 1 << 20}, {msec, 2, 2 * msec, cpuOf(msec), 1 << 20}}), quotient{}, nil},
		"rollout":     {rollout, quotient{"ratio", "path", "floor"}, nil},
		"presence":    {s.table(), quotient{}, nil},
		"sweep":       {Sweep{Tasks: 200}.table([]swept{{"finished", 1, 4 * msec, 2 * msec, cpuOf(msec)}}), quotient{"ratio", "visits, ms", "floor, ms"}, nil},
		"reports":     {Reports{Agents: 100, Processes: 3, Every: time.Second}.table([]reportRun{{cpuOf(msec), cpuOf(msec), cpuOf(2 * msec)}}, 2048, 1<<20), quotient{"ratio", "all CPU", "floor CPU"}, []string{"yes"}},
		"fleet":       {Fleet{Hosts: 1000, Processes: 5}.table(lists), quotient{}, []string{"", "yes", "yes", "**no**", "", "", ""}},
		"upkeep":      {found.upkeepTable(time.Second), quotient{}, []string{"yes", "**no**", ""}},
		"deaths":      {found.deathsTable(), quotient{}, nil},
		"series":      {found.seriesTable(), quotient{}, nil},
		"program":     {found.programTable(), quotient{}, []string{"**no**"}},
	} {
		var met []string
		for _, row := range tt.table.Rows {
			if len(row) != len(tt.table.Columns) {
				t.Errorf("%s: %d cells for %d columns", name, len(row), len(tt.table.Columns))
				continue
			}
			for i, column := range tt.table.Columns {
				if column == "met" {
					met = append(met, row[i].(string))
				}
			}
			tt.ratio.check(t, tt.table, row)
		}
		if tt.met != nil && !slices.Equal(met, tt.met) {
			t.Errorf("%s: goals are met: %q, want %q", name, met, tt.met)
		}
		var out strings.Builder
		if err := tt.table.Markdown(&out); err != nil {
			t.Error(err)
		}
		if n := strings.Count(out.String(), "\n|"); n != len(tt.table.Rows)+2 || strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}

func (q quotient) check(t *testing.T, table *Table, row []any) {
	t.Helper()
	if q == (quotient{}) {
		return
	}
	figure := func(column string) float64 {
		i := slices.Index(table.Columns, column)
		if i < 0 {
			t.Fatalf("%q has no column %q: %q", table.Title, column, table.Columns)
		}
		switch v := row[i].(type) {
		case int:
			return float64(v)
		case float64:
			return v
		}
		t.Fatalf("%q: %q is %v", table.Title, column, row[i])
		return 0
	}
	want := figure(q.of) / figure(q.by)
	if got := figure(q.column); math.Abs(got-want) > 1e-6*want {
		t.Errorf("%q: %s is %v, but %s by %s is %v", table.Title, q.column, got, q.of, q.by, want)
	}
}

func TestFiguresAreMediansAndMeans(t *testing.T) {
	t.Parallel()
	samples := []time.Duration{9 * msec, msec, 2 * msec}
	self := func(d *time.Duration) time.Duration { return *d }
	if median, mean := medianOf(samples, self), meanOf(samples, self); median != 2*msec || mean != 4*msec {
		t.Errorf("median %v, mean %v", median, mean)
	}
	if p99 := quantile(slices.Clone(samples), 0.99); p99 != 9*msec {
		t.Errorf("p99 %v", p99)
	}
	for cell, want := range map[any]string{12: "12", 12_345: "12,345", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,235", "x": "x", true: "true"} {
		if got := text(cell); got != want {
			t.Errorf("%v is %q, want %q", cell, got, want)
		}
	}
	used := spent(map[string]time.Duration{worker: msec}, map[string]time.Duration{worker: 3 * msec})
	if used[worker] != 2*msec {
		t.Errorf("spent %v", used)
	}
	out := fannedOut{samples: []fanned{fannedIn(time.Second)}}
	out.deduct(map[string]time.Duration{worker: msec, natsServer: time.Hour})
	if s := out.samples[0]; s.cpu[worker] != msec || s.cpu[natsServer] != 0 || s.floorCPU != 0 {
		t.Errorf("without the idle time %+v", s)
	}
	// Two places for a second, with one host that ends at the end and one that ends in the middle.
	begin := time.Unix(0, 0)
	if got := occupancy([]time.Time{begin, begin, begin.Add(time.Second)}, []time.Time{begin.Add(time.Second), begin.Add(time.Second / 2), begin.Add(time.Minute)}, 2); got != 75 {
		t.Errorf("occupancy %v, want 75", got)
	}
}

// TestImpossibleSettingsAreReported names a setting of each benchmark that it refuses.
func TestImpossibleSettingsAreReported(t *testing.T) {
	t.Parallel()
	cfg := Config{Runs: 1, Log: logrus.New()}
	for want, settings := range map[string]interface{ Validate() error }{
		"--runs: 0 is less than 1":        Cancel{Hosts: 1},
		"--hosts: 0 is not from 1":        Cancel{Config: cfg},
		"--hosts: a number is required":   Fanout{Config: cfg, Action: procfleet.ActionStop},
		`--action: "kill"`:                Fanout{Config: cfg, Hosts: []int{1}, Action: "kill"},
		"--connections: -1":               Safety{Config: cfg, Hosts: 1, Connections: -1},
		"--in-flight: 0":                  Small{Config: cfg, Tasks: 1, Agents: 1, Samples: 1},
		"--tasks: 0 is less than 1":       Embedded{Config: cfg, InFlight: 1, Agents: 1},
		"--tasks: 1 is less than 2":       Fair{Config: cfg, Tasks: 1, Hosts: 1, Samples: 1, Area: 1},
		"--workers: [17]":                 Workers{Config: cfg, Hosts: 1, Workers: []int{17}, Latencies: []time.Duration{0}},
		"--latency: [] are not lengths":   Workers{Config: cfg, Hosts: 1, Workers: []int{1}},
		"--areas: 0":                      Presence{Config: cfg, Hosts: 1, Tasks: 1},
		"--every: 1ms is less than 100ms": Reports{Config: cfg, Agents: 1, Processes: 1, Every: msec, For: time.Second},
		"--kills and --runs: 5 and 1":     Supervise{Config: cfg, Processes: 5, Operations: 1, Kills: 5, For: time.Second},
		"--up-processes: 10001 is more":   Supervise{Config: cfg, Processes: 5, Operations: 1, Kills: 1, For: time.Second, UpProcesses: 10_001},
		"--processes: 0":                  Fleet{Config: cfg, Hosts: 1},
		"--samples: 0":                    Poll{Config: cfg, Items: []int{1}},
	} {
		if err := settings.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", settings, err, want)
		}
	}
}
