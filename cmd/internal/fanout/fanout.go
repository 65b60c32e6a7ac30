// Package fanout measures one task on many simulated hosts against the floor
// that the same machine's NATS and Redis set for what such a task cannot do
// without. Everything runs as processes of its own, as in production.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/cmd/internal/simulate"
)

// Config of a measurement; Out and Log are required.
type Config struct {
	Hosts []int // numbers of hosts
	Runs  int   // of which medians are shown
	// NATS and Redis are URLs; with Start both are started instead.
	NATS, Redis string
	Start       bool
	Out         io.Writer
	Log         logrus.FieldLogger
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.Runs < 1 {
		errs = append(errs, fmt.Errorf("--runs: %d is less than 1", c.Runs))
	}
	if len(c.Hosts) == 0 {
		errs = append(errs, errors.New("--hosts: no number of hosts"))
	}
	for _, n := range c.Hosts {
		if n < 1 || n > simulate.MaxAgents {
			errs = append(errs, fmt.Errorf("--hosts: %d is not from 1 to %d", n, simulate.MaxAgents))
		}
	}
	return errors.Join(errs...)
}

// sample is one measured run.
type sample struct {
	floor  floor
	accept time.Duration // POST to id
	path   time.Duration // POST to finished in Redis
}

// Run measures and writes the table.
func Run(ctx context.Context, cfg Config) (err error) {
	plant, err := newPlant()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plant.close()) }()
	if cfg.Start {
		if cfg.NATS, cfg.Redis, err = plant.startServers(ctx); err != nil {
			return err
		}
	}
	table := newTable(cfg.Out)
	for _, hosts := range cfg.Hosts {
		samples, err := measure(ctx, cfg, plant, hosts)
		if err != nil {
			return fmt.Errorf("%d hosts: %w", hosts, err)
		}
		table.row(hosts, medians(samples))
	}
	return table.flush()
}

// measure alternates between the floor and the path, so that both see the
// same machine.
func measure(ctx context.Context, cfg Config, plant *plant, hosts int) ([]sample, error) {
	bare, err := newBare(ctx, cfg, hosts)
	if err != nil {
		return nil, err
	}
	defer bare.close()
	system, err := startSystem(ctx, cfg, plant, hosts)
	if err != nil {
		return nil, err
	}
	defer system.stop()
	samples := make([]sample, cfg.Runs)
	for i := range samples {
		s := &samples[i]
		if s.floor, err = bare.measure(ctx); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		if s.accept, s.path, err = system.operate(ctx, hosts); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
		cfg.Log.WithFields(logrus.Fields{"hosts": hosts, "run": i + 1, "floor_ms": s.floor.sum().Milliseconds(), "path_ms": s.path.Milliseconds()}).Info("measured")
	}
	return samples, nil
}

// medians is the sample of each column's median.
func medians(samples []sample) sample {
	of := func(column func(sample) time.Duration) time.Duration {
		values := make([]time.Duration, len(samples))
		for i, s := range samples {
			values[i] = column(s)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return sample{
		floor: floor{
			request: of(func(s sample) time.Duration { return s.floor.request }),
			publish: of(func(s sample) time.Duration { return s.floor.publish }),
			pull:    of(func(s sample) time.Duration { return s.floor.pull }),
			script:  of(func(s sample) time.Duration { return s.floor.script }),
		},
		accept: of(func(s sample) time.Duration { return s.accept }),
		path:   of(func(s sample) time.Duration { return s.path }),
	}
}
