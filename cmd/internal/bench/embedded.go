package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/cmd/internal/simulate"
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
	errs := []error{
		atLeast("--runs", e.Runs, 1), atLeast("--tasks", e.Tasks, 1), atLeast("--in-flight", e.InFlight, 1), atLeast("--agents", e.Agents, 1),
	}
	if e.Agents > simulate.MaxAgents {
		errs = append(errs, fmt.Errorf("--agents: %d is more than %d", e.Agents, simulate.MaxAgents))
	}
	return errors.Join(errs...)
}

// embeddedRun is one measured run.
type embeddedRun struct {
	floor embeddedFloor
	took  time.Duration // first POST to last "finished" event
	cpu   time.Duration // processor time of `procfleet up`
}

// embeddedFloor is the floor of N one-host status tasks. Its parts are measured one after
// another, each with the concurrency of the system.
type embeddedFloor struct {
	commits time.Duration // N tasks and N results appended to a file, one sync per InFlight
	queue   time.Duration // N publishes with a message id, acknowledged
	pull    time.Duration // N messages pulled in batches and acknowledged
	request time.Duration // N request/replies
}

func (f *embeddedFloor) sum() time.Duration { return f.commits + f.queue + f.pull + f.request }

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
		return report, errors.Join(err, l.plant.deaths())
	}
	return l.report(ctx, e.table(runs)), nil
}

func (e Embedded) measure(ctx context.Context, l *lab) ([]embeddedRun, error) {
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
	if _, err := small.many(ctx, s, max(e.Tasks/warmUpShare, 1)); err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	runs := make([]embeddedRun, e.Runs)
	for i := range runs {
		run := &runs[i]
		if run.floor, err = bare.embedded(ctx, e.Tasks, e.InFlight); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		before := cpuTime(l.plant.child(upName).pid())
		if run.took, err = small.many(ctx, s, e.Tasks); err != nil {
			return nil, err
		}
		run.cpu = cpuTime(l.plant.child(upName).pid()) - before
		e.Log.WithFields(logrus.Fields{"run": i + 1, "floor": int(perSecond(e.Tasks, run.floor.sum())), "tasks": int(perSecond(e.Tasks, run.took))}).Info("measured per second")
	}
	return runs, nil
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
	s.finishes, err = hearFinishes(l.conn)
	return s, err
}

// embedded measures the floor of n tasks at the given concurrency.
func (b *bare) embedded(ctx context.Context, n, inFlight int) (f embeddedFloor, err error) {
	b.round++
	data := make([]byte, payload)
	each := func(do func(ctx context.Context, i int) error) func(context.Context) error {
		return func(ctx context.Context) error {
			return together(ctx, n, inFlight, func(ctx context.Context, _, i int) error { return do(ctx, i) })
		}
	}
	err = measureParts(ctx, []part{
		{&f.commits, func(context.Context) error { return b.commit(2*n, inFlight) }},
		{&f.queue, each(func(ctx context.Context, i int) error { return b.queue(ctx, i, data) })},
		{&f.pull, func(ctx context.Context) error { return b.pullAll(ctx, n) }},
		{&f.request, each(func(ctx context.Context, i int) error {
			_, err := b.conn.RequestWithContext(ctx, bareHosts+strconv.Itoa(i%b.hosts), data)
			return err
		})},
	})
	return f, err
}

// commit appends n values to a file and syncs the file after each group of values.
func (b *bare) commit(n, group int) (err error) {
	file, err := os.CreateTemp(b.plant.dir, "commits-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	value := make([]byte, 4*payload)
	for i := range n {
		if _, err := file.Write(value); err != nil {
			return err
		}
		if (i+1)%group == 0 || i+1 == n {
			if err := file.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e Embedded) table(runs []embeddedRun) *Table {
	t := &Table{
		Title: fmt.Sprintf("`procfleet up` alone: %s status tasks on one host each, %s in flight, per second", thousands(e.Tasks), thousands(e.InFlight)),
		Columns: []string{
			"commits", "publish", "pull + ack", "request/reply", "floor", "tasks", "of floor", "up CPU, µs each",
		},
		Notes: []string{"From the first POST to the last \"finished\" event. The floor is the sum of its parts: per task two values appended to a file with one sync for all tasks " +
			"in flight, one JetStream publish with a message id, that message pulled and acknowledged, and one request/reply with the result. " +
			"Processor time of `up` is with its NATS, its store and all roles."},
	}
	of := func(column func(*embeddedRun) time.Duration) float64 {
		return perSecond(e.Tasks, medianOf(runs, column))
	}
	floor, tasks := of(func(r *embeddedRun) time.Duration { return r.floor.sum() }), of(func(r *embeddedRun) time.Duration { return r.took })
	t.add(
		of(func(r *embeddedRun) time.Duration { return r.floor.commits }), of(func(r *embeddedRun) time.Duration { return r.floor.queue }),
		of(func(r *embeddedRun) time.Duration { return r.floor.pull }), of(func(r *embeddedRun) time.Duration { return r.floor.request }),
		floor, tasks, tasks/floor, float64(meanOf(runs, func(r *embeddedRun) time.Duration { return r.cpu }).Microseconds())/float64(e.Tasks))
	return t
}
