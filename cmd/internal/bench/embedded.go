package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Embedded is the benchmark of one-host tasks in a single `procfleet up` process with
// embedded NATS and embedded store. It uses only Runs and Log of its Config.
type Embedded struct {
	Config
	Tasks    int // number of tasks per run
	InFlight int // concurrent tasks, each on its own HTTP connection
	Agents   int // number of simulated agents
}

// upName is the name of the `procfleet up` process.
const upName = "up"

// Validate reports all invalid settings.
func (e Embedded) Validate() error {
	return errors.Join(
		atLeast("--runs", e.Runs, 1), atLeast("--tasks", e.Tasks, 1), atLeast("--in-flight", e.InFlight, 1), checkSizes("--agents", e.Agents))
}

// Run runs the benchmark.
func (e Embedded) Run(ctx context.Context) (report Report, err error) {
	l := &lab{Config: e.Config}
	l.Start = true
	if l.plant, err = newPlant(e.Procfleet); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	runs, err := e.measure(ctx, l)
	if err != nil {
		return report, errors.Join(err, l.plant.failures())
	}
	return l.report(ctx, e.table(runs)), nil
}

func (e Embedded) measure(ctx context.Context, l *lab) ([]smallRun, error) {
	s, err := e.startUp(ctx, l)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	bare, err := newBare(ctx, l, e.Agents)
	if err != nil {
		return nil, err
	}
	defer bare.close()
	small := Small{Config: e.Config, Tasks: e.Tasks, InFlight: e.InFlight, Agents: e.Agents}
	return small.throughput(ctx, s, bare.embedded)
}

// startUp starts `procfleet up` with simulated agents in place of the local one.
func (e Embedded) startUp(ctx context.Context, l *lab) (*system, error) {
	ports := make([]string, 2)
	for i := range ports {
		var err error
		if ports[i], err = freePort(ctx); err != nil {
			return nil, err
		}
	}
	s := &system{lab: l, address: "127.0.0.1:" + ports[0], agents: e.Agents}
	listen, data := "127.0.0.1:"+ports[1], filepath.Join(l.plant.dir, upName)
	args := []string{upName, "--http", s.address, "--data", data, "--nats-listen", listen, "--agent=false", "--log-level", "warn"}
	if err := l.plant.startRole(ctx, upName, args, "ready at "); err != nil {
		return nil, err
	}
	l.NATS, l.FleetKey = "nats://"+listen, filepath.Join(data, "fleet.key")
	l.NATSCreds = filepath.Join(data, "nats-auth", "server.creds")
	if err := l.openNATS(); err != nil {
		return nil, err
	}
	if err := s.startFleet(ctx, fleet{agents: e.Agents}); err != nil {
		return nil, err
	}
	var err error
	s.finishes, err = subscribeFinishes(l.conn)
	return s, err
}

func (e Embedded) table(runs []smallRun) *Table {
	t := &Table{
		Title: fmt.Sprintf("`procfleet up` alone: %s status tasks on one host each, %s in flight, per second", thousands(e.Tasks), thousands(e.InFlight)),
		Columns: []string{
			"commits", "publish", "pull + ack", "request/reply", "floor", "tasks", "of floor", "up CPU, µs each",
		},
		Notes: []string{"Rates are from the first POST to the last \"finished\" event. The floor is the sum of its parts: per task two values appended to a file, with one sync " +
			"for all tasks in flight, one JetStream publish with a message id, that message pulled and acknowledged, and one request/reply with the result. " +
			"Processor time of `up` includes its NATS, its store and all roles."},
	}
	of := func(column func(*smallRun) time.Duration) float64 {
		return perSecond(e.Tasks, medianOf(runs, column))
	}
	floor, tasks := of(func(r *smallRun) time.Duration { return r.floor.sum() }), of(func(r *smallRun) time.Duration { return r.took })
	t.add(
		of(func(r *smallRun) time.Duration { return r.floor.store }), of(func(r *smallRun) time.Duration { return r.floor.queue }),
		of(func(r *smallRun) time.Duration { return r.floor.pull }), of(func(r *smallRun) time.Duration { return r.floor.request }),
		floor, tasks, tasks/floor, float64(meanOf(runs, func(r *smallRun) time.Duration { return r.cpu[upName] }).Microseconds())/float64(e.Tasks))
	return t
}
