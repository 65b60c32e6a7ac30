package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
)

// Safety is the benchmark of the security features: signatures, NATS users and TLS. It
// measures the same task with no feature, with each one, and with all features. It always
// starts the servers.
type Safety struct {
	Config
	Hosts       int
	Connections int // number of NATS connections of the agents; 0 selects the default of simulate
}

// Validate reports all invalid settings.
func (s Safety) Validate() error {
	return errors.Join(s.Config.Validate(), checkSizes("--hosts", s.Hosts), atLeast("--connections", s.Connections, 0))
}

// Run runs the benchmark.
func (s Safety) Run(ctx context.Context) (report Report, err error) {
	table := s.table()
	for _, secure := range []Secure{{}, {Keys: true}, {Credentials: true}, {TLS: true}, secureAll} {
		cfg := s.Config
		cfg.Start, cfg.Secure = true, secure
		report, err = inLab(ctx, cfg, func(l *lab) ([]*Table, error) {
			out, err := Fanout{Config: cfg, Connections: s.Connections, Action: procfleet.ActionStatus}.measure(ctx, l, s.Hosts)
			if err == nil {
				addSafety(table, secure, &out)
			}
			return nil, err
		})
		if err != nil {
			return Report{}, fmt.Errorf("--secure %s: %w", &secure, err)
		}
	}
	report.Tables = []*Table{table}
	return report, nil
}

func (s Safety) table() *Table {
	columns := append([]string{"secure"}, processColumns(" CPU", "all CPU", "floor CPU", "all / floor CPU", "floor", "path", "ratio")...)
	return &Table{
		Title:   fmt.Sprintf("Safety: what one status task on %s hosts costs, µs of processor time for each host", thousands(s.Hosts)),
		Columns: append(columns, processColumns(" MiB")...),
		Notes: []string{"CPU is user and system time (mean), minus the time for agents' announcements; floor CPU is that of NATS, Redis and the client of the floor. " +
			"Path is the time from POST to finished in Redis, floor the time of the floor, in ms. The floor uses the same TLS and credentials, but signs no message. " +
			"MiB is the maximum resident memory."},
	}
}

func addSafety(t *Table, secure Secure, out *fannedOut) {
	each := func(column func(*fanned) time.Duration) float64 {
		return float64(meanOf(out.samples, column).Microseconds()) / float64(out.hosts)
	}
	used, all := processCells(func(name string) float64 { return each(func(s *fanned) time.Duration { return s.cpu[name] }) })
	peaks, _ := processCells(func(name string) float64 { return mib(out.peak[name]) })
	least := each(func(s *fanned) time.Duration { return s.floorCPU })
	floor := medianOf(out.samples, func(s *fanned) time.Duration { return s.floor.sum() })
	path := medianOf(out.samples, func(s *fanned) time.Duration { return s.path })
	times := 0.0
	if least > 0 { // 0 if the run is shorter than the unit of processor time
		times = all / least
	}
	t.add(slices.Concat([]any{secure.String()}, used, []any{all, least, times, ms(floor), ms(path), ratio(path, floor)}, peaks)...)
}
