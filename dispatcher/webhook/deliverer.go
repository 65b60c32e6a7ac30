// Package webhook sends the events of tasks to the webhooks of applications.
//
// A webhook has a position in the stream of events, which the store keeps. One dispatcher at a time
// delivers for a webhook: the one that has its lease. It reads the events after the position, and
// sends each to the receiver after the one before it was accepted. So a receiver gets the events in
// their order and without gaps, at least once each: after the death of a dispatcher, the next one
// repeats the events after the stored position. A receiver that fails or does not reply delays only
// its own events, because each webhook has its own goroutine and its own reader of the stream.
package webhook

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/bus"
)

// Store is the part of a store that deliveries use.
type Store interface {
	Webhooks(ctx context.Context) ([]catalog.Webhook, error)
	RecordDelivery(ctx context.Context, application, name string, s catalog.WebhookState, dead *catalog.DeadDelivery) error
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error)
	Release(ctx context.Context, name, holder string) error
}

// Feed is the stream of the events of tasks.
type Feed interface {
	TaskEventRange(ctx context.Context) (first, last uint64, err error)
	FollowTasks(ctx context.Context, after uint64, visit func(bus.TaskEvent) error) error
}

// Config holds the dependencies of a [Deliverer]. All are required.
type Config struct {
	Store Store
	Feed  Feed
	// Send sends the event with an id to a webhook, and returns nil if the receiver has accepted it;
	// see [Sender.Send].
	Send func(ctx context.Context, w *catalog.Webhook, id string, body []byte) error
	// Selects reports whether the application of a webhook may read an event's task. It returns
	// an error if the application does not exist.
	Selects func(w *catalog.Webhook, e *bus.TaskEvent) (bool, error)
	// Body returns the body of the request for an event.
	Body func(e *bus.TaskEvent) ([]byte, error)
	// Count is called after each attempt, with one of [Outcomes]. Failing is called with 1 when a
	// webhook begins to fail here, and with -1 when it no longer does.
	Count   func(outcome string)
	Failing func(change int64)
	Log     logrus.FieldLogger
	// Reached is called at each Point. Tests terminate the process there.
	Reached func(point string)
}

// Points at which [Config].Reached is called.
const (
	PointSent = "dispatcher.sent" // a receiver has accepted an event; the position is not stored
)

// Outcomes of attempts.
const (
	outcomeOK      = "ok"
	outcomeFailed  = "failed"
	outcomeRefused = "refused" // the destination is not permitted
	outcomeDead    = "dead"    // the delivery of the event was given up
)

// Outcomes returns the outcomes that [Config].Count receives.
func Outcomes() []string {
	return []string{outcomeOK, outcomeFailed, outcomeRefused, outcomeDead}
}

// Deliverer sends the events of tasks to all webhooks.
type Deliverer struct {
	cfg       Config
	holder    string        // of the leases
	readEvery time.Duration // interval at which the webhooks are read
	leaseTTL  time.Duration
}

// NewDeliverer returns a deliverer that is inactive until [Deliverer.Run].
func NewDeliverer(cfg Config) *Deliverer {
	return &Deliverer{cfg: cfg, holder: uuid.NewString(), readEvery: readEvery, leaseTTL: leaseTTL}
}

const readEvery = 2 * time.Second

// leaseRenewal is the interval at which leases are renewed, and requested.
func (d *Deliverer) leaseRenewal() time.Duration { return d.leaseTTL / 3 }

// name identifies a webhook.
type name struct{ application, name string }

// running is the goroutine of a webhook.
type running struct {
	setAt time.Time
	stop  context.CancelCauseFunc
	ended chan struct{}
}

// Run delivers until ctx ends. It retries while the store or the stream is unavailable.
func (d *Deliverer) Run(ctx context.Context) {
	var deliveries sync.WaitGroup
	defer deliveries.Wait()
	known := map[name]*running{}
	ticker := time.NewTicker(d.readEvery)
	defer ticker.Stop()
	for {
		// An outage is logged by those who cannot serve requests; here the next round repeats the call.
		if all, err := d.webhooks(ctx); err == nil {
			d.update(ctx, known, all, &deliveries)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (d *Deliverer) webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return d.cfg.Store.Webhooks(ctx)
}

// update starts a goroutine for each webhook that is new or was set again, and stops those of others.
func (d *Deliverer) update(ctx context.Context, known map[name]*running, all []catalog.Webhook, deliveries *sync.WaitGroup) {
	seen := map[name]bool{}
	for _, w := range all {
		key := name{w.Application, w.Name}
		seen[key] = true
		before := known[key]
		if before != nil && before.setAt.Equal(w.SetAt) {
			continue
		}
		life, stop := context.WithCancelCause(ctx)
		r := &running{setAt: w.SetAt, stop: stop, ended: make(chan struct{})}
		known[key] = r
		if before != nil {
			before.stop(nil)
		}
		deliveries.Go(func() {
			defer close(r.ended)
			defer stop(nil)
			if before != nil {
				<-before.ended // both would have the same lease
			}
			if !w.Paused {
				d.deliver(life, w)
			}
		})
	}
	for key, r := range known {
		if !seen[key] {
			r.stop(errRemoved)
			delete(known, key)
		}
	}
}
