package check

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	// pollers follow the tasks; each task is one poller's, so that its looks
	// follow one another.
	pollers = 3
	// readEvery is how many looks at an open task there are for one reading of
	// its results, and readBigEvery the same for a task of many results.
	readEvery, readBigEvery = 3, 30
)

// poll follows the n-th share of the tasks until ctx ends: those that are open,
// and now and then one that is done, which must stay so.
func (l *Load) poll(ctx context.Context, n int) {
	for turn := n; ; {
		open, done := l.log.share(n, pollers)
		if len(done) > 0 {
			open = append(open, done[rand.IntN(len(done))])
		}
		for _, id := range open {
			turn++
			d := &l.doors[turn%len(l.doors)]
			if l.look(ctx, d, id) == nil && turn%l.log.readEvery(id) == 0 {
				_ = l.read(ctx, d, id, false) // a dispatcher may be away: that is what the load is for
			}
			if rest(ctx, l.cfg.Between) != nil {
				return
			}
		}
		if rest(ctx, l.cfg.Between) != nil {
			return
		}
	}
}

// rest waits, or returns the error of ctx.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// look asks a dispatcher for a task's counters, once. An error means that it
// could not be asked.
func (l *Load) look(ctx context.Context, d *door, id procfleet.TaskID) error {
	asked := time.Now()
	t, err := d.client.Task(ctx, id)
	missing := errors.Is(err, client.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	l.log.look(id, Look{Span: Span{asked, time.Now()}, Door: d.url, Missing: missing, Task: t})
	return nil
}

// read asks a dispatcher for all results of a task. An error means that it
// could not be asked; that there is no such task is for looks to find.
func (l *Load) read(ctx context.Context, d *door, id procfleet.TaskID, last bool) error {
	asked := time.Now()
	var results []client.Result
	for r, err := range d.client.Results(ctx, id, client.Query{}) {
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	l.log.reading(id, Reading{Span: Span{asked, time.Now()}, Door: d.url, Results: results, Last: last})
	return nil
}
