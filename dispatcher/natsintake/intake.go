// Package natsintake receives submissions that producers publish on NATS. It pulls
// messages up to a limit, extends their acknowledgement deadlines during processing,
// isolates messages that make dispatchers crash, and measures how many messages are
// waiting. The caller processes the messages. All dispatchers share one consumer.
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

// Config holds the dependencies and settings of an [Intake].
type Config struct {
	Bus    *bus.Bus
	Clock  taskstore.Clock // the task store's clock; also used to check whether the store is available
	Slots  int             // maximum messages being processed
	Accept time.Duration   // timeout of one request to the task store or for a trial record
	Drain  time.Duration   // how long Run waits for messages in progress after ctx ends
	Log    logrus.FieldLogger
	Meter  metric.Meter
}

// Intake receives the submissions that are published on NATS.
type Intake struct {
	cfg   Config
	alone chan struct{} // has an element during a trial, so that only one runs
	depth depth
}

// New returns an intake that is inactive until [Intake.Run].
func New(cfg *Config) (*Intake, error) {
	in := &Intake{cfg: *cfg, alone: make(chan struct{}, 1)}
	return in, in.depth.register(cfg.Meter)
}

const (
	// pullWait is the wait of one pull request. After the end of Run's context,
	// messages may still arrive for as long.
	pullWait = time.Second
	// Bounds of the backoff after failed pulls.
	leastPause, mostPause = 250 * time.Millisecond, 5 * time.Second
)

// Run pulls messages until ctx ends, and calls handle for each in its own goroutine. It
// returns when every handle has returned or Config.Drain has passed, and then cancels
// the context work. Messages that are not acknowledged are redelivered.
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

// pullAll pulls as many messages as there are free slots until ctx ends. start must
// ensure that release is called once per message.
func (in *Intake) pullAll(ctx context.Context, start func(s *bus.Submission, release func())) {
	slots := make(chan struct{}, in.cfg.Slots)
	var from *bus.Submissions
	wait := leastPause
	var warned time.Time // time of the last logged failure
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

// pull waits for a free slot and then requests one message per free slot.
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
				_ = s.Working() // a lost extension causes a redelivery, which finds the existing task
			}
		}
	}()
	return sync.OnceFunc(func() { close(over) })
}

// pause waits for d ± 25 %, so that dispatchers do not retry in lockstep, and returns
// true. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d + time.Duration((rand.Float64()-0.5)*0.5*float64(d))):
		return true
	case <-ctx.Done():
		return false
	}
}
