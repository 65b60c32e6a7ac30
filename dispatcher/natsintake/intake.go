// Package natsintake receives the operations that producers publish on NATS. It
// pulls messages up to a limit, extends their acknowledgement deadlines while they
// are processed, isolates a message that makes dispatchers crash, and measures
// how many messages wait. What a message asks for is the caller's concern. All
// dispatchers share one consumer.
package natsintake

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// Config is how an [Intake] receives.
type Config struct {
	Bus    *bus.Bus
	Clock  taskstore.Clock // of the task store, which shows whether the store is available
	Slots  int             // messages that are processed at once
	Accept time.Duration   // for one request to the store, or to a record of a trial
	Drain  time.Duration   // how long Run waits for the messages in progress when it stops
	Log    logrus.FieldLogger
	Meter  metric.Meter
}

// Intake receives published submissions.
type Intake struct {
	cfg   Config
	alone chan struct{} // held during a trial
	depth depth
}

// New returns an Intake that pulls nothing before Run.
func New(cfg *Config) (*Intake, error) {
	in := &Intake{cfg: *cfg, alone: make(chan struct{}, 1)}
	return in, in.depth.register(cfg.Meter)
}

const (
	// pullWait bounds one pull request, and so how long after Run was stopped a
	// message may still arrive.
	pullWait = time.Second
	// The backoff while nothing can be pulled.
	leastPause, mostPause = 250 * time.Millisecond, 5 * time.Second
)

// Run pulls messages until ctx ends, and calls handle for each in a goroutine of
// its own. It returns when every handle has returned or Config.Drain has passed,
// and then cancels the work context; a message that is not finished is redelivered.
func (in *Intake) Run(ctx context.Context, handle func(pulling, work context.Context, s *bus.Submission)) {
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var running sync.WaitGroup
	running.Go(func() { in.measureDepth(ctx) })
	in.pullAll(ctx, func(s *bus.Submission, release func()) {
		running.Go(func() {
			defer release()
			defer extendAck(s)()
			handle(ctx, work, s)
		})
	})
	over := make(chan struct{})
	go func() { running.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(in.cfg.Drain):
		in.cfg.Log.Warn("submissions left at the drain timeout")
	}
}

// pullAll pulls as many messages as there are free slots until ctx ends. The
// function start must have release called once for each.
func (in *Intake) pullAll(ctx context.Context, start func(s *bus.Submission, release func())) {
	slots := make(chan struct{}, in.cfg.Slots)
	var from *bus.Submissions
	wait := leastPause
	var warned time.Time // when the last failure was logged
	for ctx.Err() == nil {
		err := in.pull(ctx, &from, slots, start)
		if err == nil {
			wait = leastPause
			continue
		}
		if time.Since(warned) >= time.Second && ctx.Err() == nil {
			warned = time.Now()
			in.cfg.Log.WithError(err).Warn("pulling submissions failed, retrying")
		}
		from = nil
		pause(ctx, wait)
		wait = min(2*wait, mostPause)
	}
}

// pull waits for one free slot, and requests as many messages as there are free slots.
func (in *Intake) pull(ctx context.Context, from **bus.Submissions, slots chan struct{}, start func(*bus.Submission, func())) error {
	if *from == nil {
		opened, err := in.cfg.Bus.OpenSubmissions(ctx)
		if err != nil {
			return err
		}
		*from = opened
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	n := 1
	for ; n < cap(slots); n++ {
		select {
		case slots <- struct{}{}:
			continue
		default:
		}
		break
	}
	release := func() { <-slots }
	err := (*from).Fetch(n, pullWait, func(s *bus.Submission) {
		n--
		start(s, release)
	})
	for ; n > 0; n-- {
		release()
	}
	return err
}

// extendAck extends the acknowledgement deadline of a message until stop is called.
func extendAck(s *bus.Submission) (stop func()) {
	over := make(chan struct{})
	go func() {
		ticker := time.NewTicker(max(s.Patience/3, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				_ = s.Working() // a lost extension costs a redelivery, which finds the same task
			}
		}
	}()
	return sync.OnceFunc(func() { close(over) })
}

// pause waits for d, a quarter more or less so that dispatchers do not retry in
// step, or until ctx ends: then it is false.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d + time.Duration((rand.Float64()-0.5)*0.5*float64(d))):
		return true
	case <-ctx.Done():
		return false
	}
}
