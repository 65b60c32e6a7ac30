package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
)

// Accept is the benchmark of task acceptance: the time from the POST of a submission to
// the response with the task id.
type Accept struct {
	Config
	Hosts   []int // measured task sizes in hosts
	Samples int   // number of measured tasks on one host; larger tasks are measured Runs times
}

// Validate reports all invalid settings.
func (a Accept) Validate() error {
	return errors.Join(a.Config.Validate(), atLeast("--samples", a.Samples, 1), checkSizes("--hosts", a.Hosts...))
}

// checkSizes reports invalid task sizes.
func checkSizes(flag string, sizes ...int) error {
	var errs []error
	if len(sizes) == 0 {
		errs = append(errs, fmt.Errorf("%s: a number is required", flag))
	}
	for _, n := range sizes {
		if n < 1 || n > simulate.MaxAgents {
			errs = append(errs, fmt.Errorf("%s: %d is not from 1 to %d", flag, n, simulate.MaxAgents))
		}
	}
	return errors.Join(errs...)
}

// acceptCase is one kind of measured submission.
type acceptCase struct {
	hosts   int
	action  procfleet.Action
	keyed   bool // submissions have an Idempotency-Key
	samples int
}

// body returns the body of submission i. Each start names a new process, so that the
// dispatcher registers the process at acceptance.
func (c acceptCase) body(i int) []byte {
	name := sample
	if c.action.Registers() {
		name = fmt.Sprintf("%s-%d-%d", sample, c.hosts, i)
	}
	return submission(c.action, name, hosts(0, c.hosts))
}

func (c acceptCase) key() string {
	if c.keyed {
		return "yes"
	}
	return "no"
}

// accepted is one measured acceptance.
type accepted struct {
	redis, queue time.Duration // parts of the floor: write to Redis, publishes
	took         time.Duration
}

// Run runs the benchmark.
func (a Accept) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, a.Config, func(l *lab) ([]*Table, error) {
		system, err := startSystem(ctx, l, fleet{agents: slices.Max(a.Hosts)})
		if err != nil {
			return nil, err
		}
		defer system.stop()
		bare, err := newBare(ctx, l, 1)
		if err != nil {
			return nil, err
		}
		defer bare.close()
		t := newAcceptTable()
		for _, c := range a.cases() {
			samples, err := a.measure(ctx, system, bare, c)
			if err != nil {
				return nil, fmt.Errorf("%s on %d hosts: %w", c.action, c.hosts, err)
			}
			addAccepted(t, c, samples)
		}
		return []*Table{t}, nil
	})
}

func (a Accept) cases() (cases []acceptCase) {
	for _, hosts := range a.Hosts {
		status := acceptCase{hosts: hosts, action: procfleet.ActionStatus, samples: a.Runs}
		if hosts == 1 {
			status.samples = a.Samples
		}
		keyed, start := status, status
		keyed.keyed, start.action = true, procfleet.ActionStart
		cases = append(cases, status)
		if hosts == 1 {
			cases = append(cases, keyed)
		}
		cases = append(cases, start)
	}
	return cases
}

// measure measures the floor and the system alternately. The system is idle before each
// submission.
func (a Accept) measure(ctx context.Context, system *system, bare *bare, c acceptCase) ([]accepted, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	samples := make([]accepted, c.samples+1)
	for i := range samples {
		s, body := &samples[i], c.body(i)
		if err := bare.accept(ctx, body, c.hosts, s); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		header := ""
		if c.keyed {
			header = "Idempotency-Key: " + uuid.NewString() + "\r\n"
		}
		begun := time.Now()
		id, err := system.wire.submit(body, header)
		if err != nil {
			return nil, err
		}
		s.took = time.Since(begun)
		if err := system.finishes.await(ctx, id, c.hosts); err != nil {
			return nil, err
		}
	}
	return samples[1:], nil // the first sample includes the setup of connections
}

// chunkItems is the number of hosts per published chunk.
const chunkItems = 256

// accept measures the floor of an acceptance: one write of the request body to Redis, then
// one acknowledged publish per chunk, all publishes concurrently.
func (b *bare) accept(ctx context.Context, body []byte, hosts int, s *accepted) error {
	chunks := (hosts + chunkItems - 1) / chunkItems
	begun := time.Now()
	if err := b.redis.Set(ctx, "pf-bench:accept", body, bareExpiry).Err(); err != nil {
		return err
	}
	s.redis = time.Since(begun)
	data, begun := make([]byte, payload), time.Now()
	err := together(ctx, chunks, chunks, func(ctx context.Context, _, i int) error { return b.queue(ctx, i, data) })
	s.queue = time.Since(begun)
	return errors.Join(err, b.pullAll(ctx, chunks))
}

const (
	acceptGoal     = 3.0   // maximum ratio to the floor for a task on one host
	acceptBigGoal  = 60.0  // maximum milliseconds for a task on acceptBigHosts
	acceptBigHosts = 10000 // task size of acceptBigGoal
)

func newAcceptTable() *Table {
	return &Table{
		Title:   "Accept: POST to id, ms",
		Columns: []string{"hosts", "action", "Idempotency-Key", "samples", "Redis", "publish", "floor", "median", "p99", "ratio", "goal", "met"},
		Notes: []string{
			"The floor is one write of the request body to Redis and one acknowledged JetStream publish per 256 hosts; the publishes are concurrent.",
			"Each start is of a process that is not registered yet.",
		},
	}
}

func addAccepted(t *Table, c acceptCase, samples []accepted) {
	of := func(column func(*accepted) time.Duration) time.Duration { return medianOf(samples, column) }
	redis, queue := of(func(s *accepted) time.Duration { return s.redis }), of(func(s *accepted) time.Duration { return s.queue })
	took := of(func(s *accepted) time.Duration { return s.took })
	times := make([]time.Duration, len(samples))
	for i := range samples {
		times[i] = samples[i].took
	}
	goal, met := "", ""
	switch {
	case c.hosts == 1 && !c.keyed && !c.action.Registers():
		goal, met = atMost(ratio(took, redis+queue), acceptGoal, " × floor")
	case c.hosts == acceptBigHosts:
		goal, met = atMost(ms(took), acceptBigGoal, " ms")
	}
	t.add(c.hosts, string(c.action), c.key(), len(samples), ms(redis), ms(queue), ms(redis+queue),
		ms(took), ms(quantile(times, 0.99)), ratio(took, redis+queue), goal, met)
}
