package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/taskstore"
)

// Fleet is the benchmark of the lists of hosts and processes.
type Fleet struct {
	Config
	Hosts     int
	Processes int // per host
}

// Validate reports all invalid settings.
func (f Fleet) Validate() error {
	return errors.Join(f.Config.Validate(), checkSizes("--hosts", f.Hosts), atLeast("--processes", f.Processes, 1))
}

const (
	fleetGoal  = 50 * time.Millisecond // maximum time of a first page
	fleetBatch = 500
	// downShare: the processes of every downShare-th host do not run.
	downShare = 1000
)

// fleetLists are the measured requests; the first one is the floor of the others.
var fleetLists = []struct{ what, path string }{
	{"floor: one host", "/v1/hosts?limit=1"},
	{"hosts, first page of 100", "/v1/hosts?limit=100"},
	{"hosts with processes, first page of 100", "/v1/hosts?limit=100&processes=true"},
	{"processes, first page of 100", "/v1/hosts/processes?limit=100"},
	{"processes with drift, first page of 100", "/v1/hosts/processes?limit=100&drift=true"},
	{"hosts with a label that 1 in 1000 has, page of 10", "/v1/hosts?limit=10&label=zone=a"},
	{"processes that are down, 1 in 1000, page of 10", "/v1/hosts/processes?limit=10&state=down"},
}

// Run runs the benchmark.
func (f Fleet) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, f.Config, func(l *lab) ([]*Table, error) {
		system, err := startSystem(ctx, l, fleet{agents: 1})
		if err != nil {
			return nil, err
		}
		defer system.stop()
		samples := make([][]time.Duration, f.Runs)
		for i := range samples {
			if err := f.fill(ctx, system, int64(i+1)); err != nil {
				return nil, err
			}
			if samples[i], err = system.list(); err != nil {
				return nil, err
			}
		}
		return []*Table{f.table(samples)}, nil
	})
}

// fill announces the hosts and stores their reports, as workers do.
func (f Fleet) fill(ctx context.Context, s *system, number int64) error {
	for from := 0; from < f.Hosts; from += fleetBatch {
		var announcements []taskstore.Announcement
		var reports []catalog.Report
		for n := from; n < min(from+fleetBatch, f.Hosts); n++ {
			host := procfleet.Host{Cloud: 7, Addr: simulate.Address(n)}
			a := taskstore.Announcement{Host: host, AgentID: fmt.Sprint("agent-", n), Instance: fmt.Sprint("instance-", n), Version: "1.0.0", OS: "linux", Arch: "amd64"}
			if n%downShare == 0 {
				a.Labels = map[string]string{"zone": "a"}
			}
			announcements, reports = append(announcements, a), append(reports, f.report(host, n, number))
		}
		if err := errors.Join(s.store.Announce(ctx, announcements), s.store.Report(ctx, reports)); err != nil {
			return err
		}
	}
	return nil
}

func (f Fleet) report(host procfleet.Host, n int, number int64) catalog.Report {
	r := catalog.Report{Host: host, Instance: fmt.Sprint("instance-", n), Number: number, At: time.Now().UTC()}
	for i := range f.Processes {
		name := fmt.Sprint("process-", i)
		status := procfleet.ProcessStatus{At: r.At, Running: n%downShare != 0, Supervised: true, Phase: "running", PID: 1000 + i, StartedAt: r.At, MemoryBytes: 1 << 20}
		r.Processes = append(r.Processes, catalog.ReportedProcess{Key: "bench:" + name, Namespace: "bench", Name: name, ProcName: name, Desired: catalog.DesiredUp, Status: status})
	}
	return r
}

// list returns the time of each request of fleetLists.
func (s *system) list() ([]time.Duration, error) {
	took := make([]time.Duration, len(fleetLists))
	for i, list := range fleetLists {
		begun := time.Now()
		err := s.wire.call(http.MethodGet, list.path, "", nil, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list.path, err)
		}
		took[i] = time.Since(begun)
	}
	return took, nil
}

func (f Fleet) table(samples [][]time.Duration) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Lists of %s hosts with %d processes each, ms", thousands(f.Hosts), f.Processes),
		Columns: []string{"what", "time", "ratio to floor", "goal", "met"},
		Notes:   []string{"The floor is a page of one host over the same API in the same run. A page with a rare filter reads up to 10,000 hosts."},
	}
	of := func(i int) time.Duration {
		return medianOf(samples, func(s *[]time.Duration) time.Duration { return (*s)[i] })
	}
	for i, list := range fleetLists {
		goal, met := "", ""
		if i > 0 && i < 4 {
			goal, met = atMost(ms(of(i)), ms(fleetGoal), " ms")
		}
		t.add(list.what, ms(of(i)), ratio(of(i), of(0)), goal, met)
	}
	return t
}
