package worker

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"
)

// lanes pulls chunk references. The small lane and the big ones have a share
// each, so that neither waits for the other.
type lanes struct {
	deliverer  *deliverer
	small, big *share
	deliveries sync.WaitGroup
}

// maxFetch bounds one request for chunk references.
const maxFetch = 64

// pullSmall takes places first and asks for as many chunks: a chunk that was
// pulled never waits, so waiting never looks like failed deliveries. The
// deliveries have the lifetime of work, which outlasts pulling.
func (l *lanes) pullSmall(ctx, work context.Context, consumer jetstream.Consumer) error {
	first, err := l.small.enter(ctx)
	if err != nil {
		return nil // ctx has ended
	}
	places := []*place{first}
	for len(places) < maxFetch {
		next := l.small.tryEnter()
		if next == nil {
			break
		}
		places = append(places, next)
	}
	defer func() {
		for _, p := range places {
			p.leave()
		}
	}()
	return fetch(consumer, len(places), l.deliverer.timing.Pull, func(msg jetstream.Msg) {
		at := places[0]
		places = places[1:]
		l.deliveries.Go(func() { l.deliverer.deliver(work, msg, at) })
	})
}

// bigBusy is how many chunks of big tasks are worked on at a time, the others in
// flight wait for slow hosts: as many as leave a processor to small tasks. On
// two processors, a big task takes a third less time if two are, and a small one
// beside it almost twice as much.
func bigBusy() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// pullBig holds one chunk of its lane ahead and waits in line for a place, so
// that lanes with work take turns and idle ones take no place.
func (l *lanes) pullBig(ctx, work context.Context, consumer jetstream.Consumer) error {
	return fetch(consumer, 1, l.deliverer.timing.Pull, func(msg jetstream.Msg) {
		l.deliverer.held.add(msg)
		at, err := l.big.enter(ctx)
		if err != nil {
			l.deliverer.giveBack(work, msg)
			l.deliverer.held.remove(msg)
			return
		}
		l.deliveries.Go(func() { l.deliverer.deliver(work, msg, at) })
	})
}

// fetch asks for up to n messages and hands each over as it arrives, until
// all came or the server says that wait is over. No context ends it, nor a
// clock of ours that runs out with the server's: what the server gives to a
// request that nobody reads any more is held up for as long as a lost message.
func fetch(consumer jetstream.Consumer, n int, wait time.Duration, handle func(jetstream.Msg)) error {
	batch, err := consumer.Fetch(n, jetstream.FetchMaxWait(wait))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		handle(msg)
	}
	return ending(batch)
}

// ending returns the error that ended a request, if it was one: that a request
// is complete is what a server may put in words.
func ending(batch jetstream.MessageBatch) error {
	if err := batch.Error(); !errors.Is(err, jetstream.ErrBatchCompleted) {
		return err
	}
	return nil
}

// repeat calls step until ctx ends. After an error it waits, longer each time;
// only the first of a row is logged.
func repeat(ctx context.Context, t *Timing, log logrus.FieldLogger, step func(context.Context) error) {
	wait := backoff{least: t.RetryMin, most: t.RetryMax}
	failing := false
	for ctx.Err() == nil {
		err := step(ctx)
		switch {
		case err == nil && failing:
			log.Info("pulling resumed")
			failing = false
			wait.reset()
		case err != nil && ctx.Err() == nil:
			if !failing {
				log.WithError(err).Warn("pulling failed, retrying")
			}
			failing = true
			if wait.wait(ctx) != nil {
				return
			}
		}
	}
}
