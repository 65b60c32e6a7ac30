package webhook

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
)

const (
	leaseTTL     = 15 * time.Second
	storeTimeout = leaseTTL / 3
	// saveEvery is the interval at which the position is stored while events are accepted.
	saveEvery = time.Second
	// retryUnavailable is the pause while the store or the stream is unavailable.
	retryUnavailable = time.Second

	backoffMin = 5 * time.Second
	backoffMax = 6 * time.Hour
	// giveUpAfter is the time after which a delivery that fails is given up.
	giveUpAfter = 72 * time.Hour
)

// delivery sends the events to one webhook.
type delivery struct {
	*Deliverer
	webhook catalog.Webhook
	log     logrus.FieldLogger

	mu    sync.Mutex
	state catalog.WebhookState
	saved catalog.WebhookState // last stored state
	at    time.Time            // when it was stored
}

var (
	errLost    = errors.New("webhook: another dispatcher has the lease")
	errRemoved = errors.New("webhook: it was removed")
	errFailed  = errors.New("webhook: the delivery has failed")
)

// deliver sends events whenever this dispatcher has the lease of the webhook, until ctx ends.
func (d *Deliverer) deliver(ctx context.Context, w catalog.Webhook) {
	lease := "webhook/" + w.Application + "/" + w.Name
	for ctx.Err() == nil {
		if d.lease(ctx, lease) {
			one := &delivery{Deliverer: d, webhook: w, log: d.cfg.Log.WithFields(logrus.Fields{"webhook": w.Name, "application": w.Application})}
			one.hold(ctx, lease)
		}
		pause(ctx, d.leaseRenewal())
	}
}

func (d *Deliverer) lease(ctx context.Context, lease string) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	held, err := d.cfg.Store.Lease(ctx, lease, d.holder, d.leaseTTL)
	return held && err == nil
}

// hold sends events until ctx ends or the lease is lost.
func (d *delivery) hold(ctx context.Context, lease string) {
	ctx, lose := context.WithCancelCause(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() { d.renew(ctx, lease, lose) })
	err := d.load(ctx)
	for err == nil {
		err = d.follow(ctx)
	}
	lose(err)
	renewal.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if !errors.Is(err, errLost) && !errors.Is(err, errRemoved) {
		_ = d.save(ctx) // without it, events are repeated
	}
	if !errors.Is(err, errLost) {
		_ = d.cfg.Store.Release(ctx, lease, d.holder)
	}
	d.change(func(s *catalog.WebhookState) { *s = catalog.WebhookState{} }) // it fails here no longer
}

// renew renews the lease, and stores the position of events that were accepted since. It ends the
// delivery if the lease may have ended.
func (d *delivery) renew(ctx context.Context, lease string, lose context.CancelCauseFunc) {
	ticker := time.NewTicker(d.leaseRenewal())
	defer ticker.Stop()
	until := time.Now().Add(d.leaseTTL)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		begin := time.Now()
		if d.lease(ctx, lease) {
			until = begin.Add(d.leaseTTL)
			_ = d.save(ctx) // repeated with the next renewal
		}
		if time.Now().Add(d.leaseRenewal()).After(until) {
			lose(errLost)
			return
		}
	}
}

// load reads the state, which another dispatcher may have changed.
func (d *delivery) load(ctx context.Context) error {
	all, err := d.webhooks(ctx)
	if err != nil {
		return errLost // the next holder reads it
	}
	i := slices.IndexFunc(all, func(w catalog.Webhook) bool {
		return w.Application == d.webhook.Application && w.Name == d.webhook.Name && w.SetAt.Equal(d.webhook.SetAt)
	})
	if i < 0 {
		return errRemoved
	}
	d.change(func(s *catalog.WebhookState) { *s, d.saved = all[i].Current(), all[i].State })
	return nil
}

// follow sends the events after the position until an attempt fails or ctx ends.
func (d *delivery) follow(ctx context.Context) error {
	state := d.current()
	if state.Failure.Ended {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	pause(ctx, time.Until(state.Failure.NextAt))
	err := d.reposition(ctx)
	if err == nil {
		err = d.cfg.Feed.FollowTasks(ctx, d.current().Position, func(e bus.TaskEvent) error { return d.visit(ctx, &e) })
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, bus.ErrDropped):
		d.change(func(s *catalog.WebhookState) { s.Position, s.Missed = s.Position+1, s.Missed+1 })
	case !errors.Is(err, errFailed):
		pause(ctx, retryUnavailable)
	}
	return nil
}

// reposition skips events that the stream has dropped.
func (d *delivery) reposition(ctx context.Context) error {
	first, last, err := d.cfg.Feed.TaskEventRange(ctx)
	if err != nil {
		return err
	}
	d.change(func(s *catalog.WebhookState) {
		if s.Position > last { // the stream is a new one
			s.Position = first - 1
		}
		if missed := first - 1; s.Position < missed {
			d.log.WithField("events", missed-s.Position).Error("webhook missed events")
			s.Missed += missed - s.Position
			s.Position = missed
		}
	})
	return nil
}

// visit sends an event, if it is selected. It returns an error if the position must stay.
func (d *delivery) visit(ctx context.Context, e *bus.TaskEvent) error {
	selected, err := d.cfg.Selects(&d.webhook, e)
	if err != nil {
		return d.failed(ctx, err)
	}
	if !selected {
		d.change(func(s *catalog.WebhookState) { s.Position = e.Position })
		return nil
	}
	body, err := d.cfg.Body(e)
	if err != nil {
		return err
	}
	err = d.cfg.Send(ctx, &d.webhook, e.EventID(), body)
	failure := d.current().Failure
	switch {
	case err == nil:
		return d.accepted(ctx, e)
	case ctx.Err() == nil && !errors.Is(err, errGone) && expired(&failure, e.At, time.Now()):
		return d.giveUp(ctx, e, body, err.Error())
	}
	return d.failed(ctx, err)
}

// accepted moves the position over an event that the receiver has accepted.
func (d *delivery) accepted(ctx context.Context, e *bus.TaskEvent) error {
	d.cfg.Count(outcomeOK)
	d.cfg.Reached(PointSent)
	failure := d.current().Failure
	d.change(func(s *catalog.WebhookState) { s.Position, s.Failure = e.Position, catalog.Failure{} })
	if failure.Attempts > 0 {
		d.log.WithField("attempts", failure.Attempts).Info("webhook works again")
	} else if time.Since(d.savedAt()) < saveEvery {
		return nil
	}
	_ = d.save(ctx) // repeated with the next event or renewal
	return nil
}

// failed records a failed attempt, and returns the error that ends the reading of events.
func (d *delivery) failed(ctx context.Context, problem error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the attempt was aborted
	}
	outcome := outcomeFailed
	if destination.Refused(problem) {
		outcome = outcomeRefused
	}
	d.cfg.Count(outcome)
	now := time.Now()
	var failure catalog.Failure
	d.change(func(s *catalog.WebhookState) {
		f := &s.Failure
		if f.Attempts == 0 {
			f.Since = now
		}
		f.Attempts++
		f.NextAt, f.Problem, f.Ended = now.Add(backoff(f.Attempts)), problem.Error(), errors.Is(problem, errGone)
		failure = *f
	})
	log := d.log.WithError(problem).WithField("attempts", failure.Attempts)
	switch {
	case failure.Ended:
		log.Warn("webhook ended by its receiver")
	case failure.Attempts == 1:
		log.Warn("webhook failed, retrying")
	}
	_ = d.save(ctx) // without it, the next holder tries again at once
	return errFailed
}

// backoff returns the pause after a number of failed attempts.
func backoff(attempts int) time.Duration {
	return min(backoffMin<<min(attempts-1, 20), backoffMax)
}

// expired reports whether the receiver has failed for so long that the delivery of an event is given
// up when its attempt fails.
func expired(f *catalog.Failure, at, now time.Time) bool {
	if f.Since.After(at) {
		at = f.Since
	}
	return f.Attempts > 0 && now.Sub(at) > giveUpAfter
}

// giveUp stores an event as dead, and with it the position after it.
func (d *delivery) giveUp(ctx context.Context, e *bus.TaskEvent, body []byte, problem string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.state
	next.Position = e.Position
	err := d.store(ctx, next, &catalog.DeadDelivery{Position: e.Position, Event: e.EventID(), Body: body, Problem: problem, At: time.Now()})
	if err != nil {
		return err
	}
	d.state = next
	d.cfg.Count(outcomeDead)
	d.log.WithFields(logrus.Fields{"event": e.EventID(), "problem": problem}).Error("webhook delivery given up")
	return nil
}

func (d *delivery) current() catalog.WebhookState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

func (d *delivery) savedAt() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

func (d *delivery) change(do func(*catalog.WebhookState)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := failing(&d.state)
	do(&d.state)
	switch now := failing(&d.state); {
	case now && !failed:
		d.cfg.Failing(1)
	case failed && !now:
		d.cfg.Failing(-1)
	}
}

func failing(s *catalog.WebhookState) bool { return s.Failure.Attempts > 0 && !s.Failure.Ended }

// save stores the state, if it has changed.
func (d *delivery) save(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == d.saved {
		return nil
	}
	return d.store(ctx, d.state, nil)
}

// store stores a state and a dead delivery, unless dead is nil. d.mu must be locked.
func (d *delivery) store(ctx context.Context, s catalog.WebhookState, dead *catalog.DeadDelivery) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := d.cfg.Store.RecordDelivery(ctx, d.webhook.Application, d.webhook.Name, s, dead); err != nil {
		return err
	}
	d.saved, d.at = s, time.Now()
	return nil
}

// pause waits for a duration or until ctx ends.
func pause(ctx context.Context, duration time.Duration) {
	if duration <= 0 {
		return
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
