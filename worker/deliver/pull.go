package deliver

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

// Ready reports whether the deliverer pulls from every lane.
func (d *Deliverer) Ready() bool { return int(d.pulling.Load()) == len(procfleet.Lanes()) }

// Run pulls chunks until ctx ends, and then returns parked chunks to the queue. It
// returns when all other pulled chunks are delivered or the context work has ended.
func (d *Deliverer) Run(ctx, work context.Context) {
	var services, lanes sync.WaitGroup
	defer services.Wait()
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	services.Go(func() { d.acks.run(over) })
	services.Go(func() { d.recordReconnects(over) })
	if stop, err := d.cfg.Bus.FollowHolds("", d.holds.hold); err != nil {
		d.log.WithError(err).Warn("hints of paused tasks not received")
	} else {
		defer stop()
	}
	for _, lane := range procfleet.Lanes() {
		pull := d.pullBig
		if lane == procfleet.LaneSmall {
			pull = d.pullSmall
		}
		lanes.Go(func() { d.pull(ctx, work, lane, pull) })
	}
	lanes.Wait()
	close(d.parked.stopping)
	d.deliveries.Wait()
}

// pullFunc pulls once from a consumer; the context work bounds the deliveries.
type pullFunc func(ctx, work context.Context, consumer jetstream.Consumer) error

// pull opens the consumer of a lane and pulls from it until ctx ends. After an error it
// backs off; only the first of consecutive errors is logged.
func (d *Deliverer) pull(ctx, work context.Context, lane procfleet.Lane, pull pullFunc) {
	log := d.cfg.Log.WithField("consumer", "deliver-"+string(lane))
	wait, failing := d.cfg.Calls.Backoff(), false
	var consumer jetstream.Consumer
	for ctx.Err() == nil {
		var err error
		if consumer == nil {
			consumer, err = d.open(ctx, lane)
		}
		if err == nil {
			err = pull(ctx, work, consumer)
		}
		switch {
		case err == nil && failing:
			log.Info("pulling resumed")
			failing = false
			wait = d.cfg.Calls.Backoff()
		case err != nil && ctx.Err() == nil:
			if !failing {
				log.WithError(err).Warn("pulling failed, retrying")
			}
			failing = true
			_ = wait.Wait(ctx) // Wait fails only if ctx ends, which ends the loop
		}
	}
	if consumer != nil {
		d.pulling.Add(-1)
	}
}

func (d *Deliverer) open(ctx context.Context, lane procfleet.Lane) (jetstream.Consumer, error) {
	consumer, err := d.cfg.Bus.DeliverConsumer(ctx, lane)
	if err != nil {
		return nil, err
	}
	d.acks.ackWaits <- consumer.CachedInfo().Config.AckWait // received until all lanes have ended
	d.pulling.Add(1)
	return consumer, nil
}

// maxFetch bounds the chunk references of one pull request.
const maxFetch = 64

// pullSmall acquires slots first and requests as many chunks. A pulled chunk never waits
// for a slot, so waiting never counts as a failed delivery.
func (d *Deliverer) pullSmall(ctx, work context.Context, consumer jetstream.Consumer) error {
	first, err := d.small.acquire(ctx)
	if err != nil {
		return nil // acquire fails only if ctx has ended
	}
	slots := []*slot{first}
	for len(slots) < maxFetch {
		next := d.small.tryAcquire()
		if next == nil {
			break
		}
		slots = append(slots, next)
	}
	defer func() {
		for _, s := range slots {
			s.release()
		}
	}()
	return fetch(consumer, len(slots), d.cfg.Pull, func(msg jetstream.Msg) {
		s := slots[0]
		slots = slots[1:]
		d.deliveries.Go(func() { d.deliver(work, msg, s) })
	})
}

// maxBusyBig is the number of chunks of big tasks that are processed concurrently; the
// other chunks in flight wait for slow hosts. One processor is left to small tasks:
// measured on two processors, a limit of two makes a big task a third faster, but a
// concurrent small task almost twice as slow.
func maxBusyBig() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// pullBig pulls one chunk of its lane and then waits for a slot, in order of arrival:
// lanes with chunks take turns, and idle lanes use no slot.
func (d *Deliverer) pullBig(ctx, work context.Context, consumer jetstream.Consumer) error {
	return fetch(consumer, 1, d.cfg.Pull, func(msg jetstream.Msg) {
		d.acks.add(msg)
		s, err := d.big.acquire(ctx)
		if err != nil {
			d.requeue(work, msg)
			d.acks.remove(msg)
			return
		}
		d.deliveries.Go(func() { d.deliver(work, msg, s) })
	})
}

// fetch requests up to n messages and handles each on arrival. It returns after n
// messages, or when the server ends the request after wait. It has no context or
// timeout of its own: a message that the server sends to an abandoned request would
// only be redelivered after the ack wait.
func fetch(consumer jetstream.Consumer, n int, wait time.Duration, handle func(jetstream.Msg)) error {
	batch, err := consumer.Fetch(n, jetstream.FetchMaxWait(wait))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		handle(msg)
	}
	if err := batch.Error(); !errors.Is(err, jetstream.ErrBatchCompleted) { // some servers report it at the regular end
		return err
	}
	return nil
}
