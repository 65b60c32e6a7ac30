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
	// pollers is the number of pollers. One poller polls a task, so the polls of a
	// task are sequential.
	pollers = 3
	// readEvery is the number of polls of an open task's counters per poll of its
	// results, and readBigEvery the same for a big task.
	readEvery, readBigEvery = 3, 30
)

// poll polls the n-th share of the tasks until ctx ends: the open tasks, and
// sometimes a finished task, which must stay finished.
func (l *Load) poll(ctx context.Context, n int) {
	for turn := n; ; {
		open, done := l.log.share(n, pollers)
		if len(done) > 0 {
			open = append(open, done[rand.IntN(len(done))])
		}
		for _, id := range open {
			turn++
			d := &l.dispatchers[turn%len(l.dispatchers)]
			if l.pollTask(ctx, d, id) == nil && turn%l.log.readEvery(id) == 0 {
				_ = l.pollResults(ctx, d, id, false) // the dispatcher may be unavailable, which is the purpose of the load
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

// pollTask polls a task's counters from one dispatcher, once. An error means that there
// was no response.
func (l *Load) pollTask(ctx context.Context, d *dispatcher, id procfleet.TaskID) error {
	asked := time.Now()
	t, err := d.client.Task(ctx, id)
	missing := errors.Is(err, client.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	l.log.addPoll(id, TaskPoll{Span: Span{asked, time.Now()}, Dispatcher: d.url, Missing: missing, Task: t})
	return nil
}

// pollResults polls all results of a task from one dispatcher. An error means that there
// was no response. If the task does not exist, pollTask records that.
func (l *Load) pollResults(ctx context.Context, d *dispatcher, id procfleet.TaskID, last bool) error {
	asked := time.Now()
	var results []client.Result
	for r, err := range d.client.Results(ctx, id, client.Query{}) {
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	l.log.addResults(id, ResultsPoll{Span: Span{asked, time.Now()}, Dispatcher: d.url, Results: results, Last: last})
	return nil
}
