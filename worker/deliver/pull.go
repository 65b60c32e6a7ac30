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

// Ready reports whether every lane is pulled from.
func (d *Deliverer) Ready() bool { return int(d.pulling.Load()) == len(procfleet.Lanes()) }

// Run pulls chunks until ctx ends, returns parked ones to the queue then, and
// returns when the others are delivered, or work has ended.
func (d *Deliverer) Run(ctx, work context.Context) {
	var services, lanes sync.WaitGroup
	defer services.Wait()
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	services.Go(func() { d.acks.run(over) })
	services.Go(func() { d.conn.run(over) })
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

// pullFunc pulls from a consumer once; work is the lifetime of the deliveries.
type pullFunc func(ctx, work context.Context, consumer jetstream.Consumer) error

// pull opens the consumer of a lane and pulls from it until ctx ends. After an error
// it pauses, longer each time, and logs the first of a row.
func (d *Deliverer) pull(ctx, work context.Context, lane procfleet.Lane, pull pullFunc) {
	log := d.cfg.Log.WithField("consumer", "deliver-"+string(lane))
	wait, failing := d.cfg.Link.Calls.Backoff(), false
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
			wait.Reset()
		case err != nil && ctx.Err() == nil:
			if !failing {
				log.WithError(err).Warn("pulling failed, retrying")
			}
			failing = true
			_ = wait.Wait(ctx) // fails if ctx ends, and then the loop ends
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
	d.acks.adjust(consumer.CachedInfo().Config.AckWait)
	d.pulling.Add(1)
	return consumer, nil
}

// maxFetch bounds one request for chunk references.
const maxFetch = 64

// pullSmall acquires slots first and requests as many chunks: a pulled chunk never
// waits, so waiting never counts as a failed delivery.
func (d *Deliverer) pullSmall(ctx, work context.Context, consumer jetstream.Consumer) error {
	first, err := d.small.acquire(ctx)
	if err != nil {
		return nil // ctx has ended
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

// maxBusyBig is how many chunks of big tasks are worked on at a time, the others
// in flight wait for slow hosts: as many as leave a processor to small tasks. On
// two processors, with two a big task takes a third less time, and a small one
// beside it almost twice as much.
func maxBusyBig() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// pullBig pulls one chunk of its lane ahead and waits in line for a slot, so that
// lanes with chunks take turns and idle ones use no slot.
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

// fetch requests up to n messages and handles each as it arrives, until all did or
// the server ends the request after wait. Neither a context nor a timeout of this
// worker ends it: a message that the server sends to an abandoned request is
// redelivered only after the ack wait.
func fetch(consumer jetstream.Consumer, n int, wait time.Duration, handle func(jetstream.Msg)) error {
	batch, err := consumer.Fetch(n, jetstream.FetchMaxWait(wait))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		handle(msg)
	}
	if err := batch.Error(); !errors.Is(err, jetstream.ErrBatchCompleted) { // which some servers report instead of nothing
		return err
	}
	return nil
}
