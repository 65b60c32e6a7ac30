package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// owners knows which host's an item is: an agent that proves who it is can
// speak for its own host, and not for others of the same task. It remembers the
// last items that were asked for, and is safe for concurrent use.
type owners struct {
	store Store

	mu     sync.Mutex
	blocks map[block][]procfleet.Host
	oldest []block // the first one goes first
}

// block is a run of blockItems items of a task, which are looked up together.
type block struct {
	task   procfleet.TaskID
	number int
}

const (
	blockItems = 256
	// maxBlocks are remembered: room for three tasks of 100,000 items, 10 MiB.
	maxBlocks = 1200
)

func newOwners(store Store) *owners {
	return &owners{store: store, blocks: map[block][]procfleet.Host{}}
}

// of returns the host of each result's item; the zero Host where the task has
// no such item. ErrNotFound if there is no such task, or no longer.
func (o *owners) of(ctx context.Context, task procfleet.TaskID, results []procfleet.Result) ([]procfleet.Host, error) {
	found := map[int][]procfleet.Host{}
	var missing []int
	o.mu.Lock()
	for i := range results {
		n := results[i].Item / blockItems
		if _, looked := found[n]; looked {
			continue
		}
		found[n] = o.blocks[block{task, n}]
		if found[n] == nil {
			missing = append(missing, n)
		}
	}
	o.mu.Unlock()
	if err := o.look(ctx, task, missing, found); err != nil {
		return nil, err
	}
	hosts := make([]procfleet.Host, len(results))
	for i := range results {
		hosts[i] = found[results[i].Item/blockItems][results[i].Item%blockItems]
	}
	return hosts, nil
}

// look adds the missing blocks of a task to those that were found.
func (o *owners) look(ctx context.Context, task procfleet.TaskID, missing []int, found map[int][]procfleet.Host) error {
	if len(missing) == 0 {
		return nil
	}
	items := make([]int, 0, len(missing)*blockItems)
	for _, n := range missing {
		for i := range blockItems {
			items = append(items, n*blockItems+i)
		}
	}
	hosts, err := o.store.Owners(ctx, task, items)
	if err != nil {
		return fmt.Errorf("look up the hosts of items of task %s: %w", task, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, n := range missing {
		found[n] = hosts[i*blockItems : (i+1)*blockItems]
		o.remember(block{task, n}, found[n])
	}
	return nil
}

func (o *owners) remember(b block, hosts []procfleet.Host) {
	if _, known := o.blocks[b]; known {
		return
	}
	if len(o.oldest) == maxBlocks {
		delete(o.blocks, o.oldest[0])
		o.oldest = append(o.oldest[:0], o.oldest[1:]...)
	}
	o.blocks[b] = hosts
	o.oldest = append(o.oldest, b)
}

// lookupsAtOnce bounds the tasks whose items are looked up at a time. The Redis
// store sends concurrent calls in common round trips.
const lookupsAtOnce = 64

// keepOwn leaves of each request the results of items of the host that it is
// from; the others are counted, logged and rejected.
func (c *collector) keepOwn(ctx context.Context, requests []*request) error {
	if !c.believer.signs() {
		return nil // anybody may have written which host it is
	}
	ofTask := make(map[procfleet.TaskID][]*request)
	for _, r := range requests {
		ofTask[r.task] = append(ofTask[r.task], r)
	}
	lookups, ctx := errgroup.WithContext(ctx)
	lookups.SetLimit(lookupsAtOnce)
	for _, requests := range ofTask {
		lookups.Go(func() error {
			return guarded(func() error { return c.keepOwnOfTask(ctx, requests) })
		})
	}
	return lookups.Wait()
}

// keepOwnOfTask is keepOwn for requests of one task.
func (c *collector) keepOwnOfTask(ctx context.Context, requests []*request) error {
	for n, r := range requests {
		hosts, err := c.owners.of(ctx, r.task, r.results)
		if errors.Is(err, taskstore.ErrNotFound) {
			for _, r := range requests[n:] {
				r.rejectAll() // even if the task appears now: whose its items are is not known
			}
			return nil
		}
		if err != nil {
			return err
		}
		c.keepOwnResults(r, hosts)
	}
	return nil
}

// keepOwnResults is keepOwn for one request; hosts are those of its results.
func (c *collector) keepOwnResults(r *request, hosts []procfleet.Host) {
	own := make([]procfleet.Result, 0, len(r.results))
	for n := range r.results {
		if hosts[n] == r.host {
			own = append(own, r.results[n])
		} else {
			r.foreign = append(r.foreign, r.results[n].Item)
		}
	}
	if foreign := len(r.results) - len(own); foreign > 0 {
		c.believer.metrics.refused(agentproto.TypeResults, fleetkey.ErrForged)
		c.log.WithFields(logrus.Fields{"host": r.host.String(), "task": r.task, "items": foreign, "remedy": "the identity of this host may be stolen: re-enroll it if this repeats"}).
			Error("results dropped: items of another host")
	}
	r.results = own
}

// rejectAll has the receipt reject every result of the request.
func (r *request) rejectAll() {
	for i := range r.results {
		r.foreign = append(r.foreign, r.results[i].Item)
	}
	r.results = nil
}
