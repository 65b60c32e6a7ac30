package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
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
	return errors.Join(s.Config.Validate(), checkSizes("--hosts", []int{s.Hosts}), atLeast("--connections", s.Connections, 0))
}

// Run runs the benchmark.
func (s Safety) Run(ctx context.Context) (report Report, err error) {
	table := s.table()
	for _, secure := range []Secure{{}, {Keys: true}, {Credentials: true}, {TLS: true}, secureAll} {
		cfg := s.Config
		cfg.Start, cfg.Secure = true, secure
		err := inLab(ctx, cfg, func(l *lab) error {
			out, err := Fanout{Config: cfg, Connections: s.Connections}.measure(ctx, l, s.Hosts)
			if err != nil {
				return err
			}
			report.Machine = l.machine(ctx)
			addSafety(table, secure, &out)
			return nil
		})
		if err != nil {
			return Report{}, fmt.Errorf("--secure %s: %w", &secure, err)
		}
	}
	report.Tables = []*Table{table}
	return report, nil
}

func (s Safety) table() *Table {
	t := &Table{
		Title:   fmt.Sprintf("Safety: what one status task on %s hosts costs, µs of processor time for each host", thousands(s.Hosts)),
		Columns: []string{"secure"},
		Notes: []string{"Processor time, user and system (mean), less what the agents' announcements take meanwhile; that of the floor is NATS', Redis' and its client's. Path is from POST to finished in " +
			"Redis and floor the same on the clock, in ms. TLS and credentials are on for the floor where they are on; it signs nothing. MiB are the most " +
			"that was resident."},
	}
	for _, name := range processNames() {
		t.Columns = append(t.Columns, name+" CPU")
	}
	t.Columns = append(t.Columns, "all CPU", "floor CPU", "all / floor CPU", "floor", "path", "ratio")
	for _, name := range processNames() {
		t.Columns = append(t.Columns, name+" MiB")
	}
	return t
}

func addSafety(t *Table, secure Secure, out *fannedOut) {
	row, all := []any{secure.String()}, 0.0
	each := func(column func(*fanned) time.Duration) float64 {
		return float64(meanOf(out.samples, column).Microseconds()) / float64(out.hosts)
	}
	for _, name := range processNames() {
		used := each(func(s *fanned) time.Duration { return s.cpu[name] })
		row, all = append(row, used), all+used
	}
	least := each(func(s *fanned) time.Duration { return s.floorCPU })
	floor := medianOf(out.samples, func(s *fanned) time.Duration { return s.floor.sum() })
	path := medianOf(out.samples, func(s *fanned) time.Duration { return s.path })
	times := 0.0
	if least > 0 { // 0 if the run is shorter than the unit of processor time
		times = all / least
	}
	row = append(row, all, least, times, ms(floor), ms(path), ratio(path, floor))
	for _, name := range processNames() {
		row = append(row, mib(out.peak[name]))
	}
	t.add(row...)
}
