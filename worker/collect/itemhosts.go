package collect

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
	"github.com/procfleet/procfleet/worker/agentlink"
)

// itemHosts returns the hosts of items, to check that an agent only reports results of
// its own host. It caches recently read items and is safe for concurrent use.
type itemHosts struct {
	store Store

	mu     sync.Mutex
	blocks map[block][]procfleet.Host
	oldest []block // in order of insertion; the first is evicted first
}

// block is a range of blockItems items of a task, which are read and cached together.
type block struct {
	task   procfleet.TaskID
	number int
}

const (
	blockItems = 256
	// maxBlocks bounds the cache: three tasks of 100,000 items, or 10 MiB.
	maxBlocks = 1200
)

func newItemHosts(store Store) *itemHosts {
	return &itemHosts{store: store, blocks: map[block][]procfleet.Host{}}
}

// of returns the host of each result's item, or the zero Host if the task has no such
// item. The error is ErrNotFound if the task does not exist.
func (o *itemHosts) of(ctx context.Context, task procfleet.TaskID, results []procfleet.Result) ([]procfleet.Host, error) {
	found := map[int][]procfleet.Host{}
	var missing []int
	o.mu.Lock()
	for i := range results {
		n := results[i].Item / blockItems
		if _, done := found[n]; done {
			continue
		}
		found[n] = o.blocks[block{task, n}]
		if found[n] == nil {
			missing = append(missing, n)
		}
	}
	o.mu.Unlock()
	if err := o.load(ctx, task, missing, found); err != nil {
		return nil, err
	}
	hosts := make([]procfleet.Host, len(results))
	for i := range results {
		hosts[i] = found[results[i].Item/blockItems][results[i].Item%blockItems]
	}
	return hosts, nil
}

// load reads the missing blocks of a task into found and the cache.
func (o *itemHosts) load(ctx context.Context, task procfleet.TaskID, missing []int, found map[int][]procfleet.Host) error {
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
		return fmt.Errorf("read the hosts of items of task %s: %w", task, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, n := range missing {
		b := block{task, n}
		found[n] = hosts[i*blockItems : (i+1)*blockItems]
		if o.blocks[b] != nil {
			continue
		}
		if len(o.oldest) == maxBlocks {
			delete(o.blocks, o.oldest[0])
			o.oldest = append(o.oldest[:0], o.oldest[1:]...)
		}
		o.blocks[b] = found[n]
		o.oldest = append(o.oldest, b)
	}
	return nil
}

// maxLookups bounds the tasks whose items are read concurrently. The Redis store
// combines concurrent calls into shared round trips.
const maxLookups = 64

// dropForeign removes from each request the results of items that belong to other hosts;
// these are counted, logged and rejected.
func (c *collector) dropForeign(ctx context.Context, requests []*agentlink.Request) error {
	if !c.Link.Auth.HasKeys() {
		return nil // the host in a message is not verified either
	}
	ofTask := make(map[procfleet.TaskID][]*agentlink.Request)
	for _, r := range requests {
		ofTask[r.Task] = append(ofTask[r.Task], r)
	}
	lookups, ctx := errgroup.WithContext(ctx)
	lookups.SetLimit(maxLookups)
	for _, requests := range ofTask {
		lookups.Go(func() error {
			return agentlink.Guarded(func() error { return c.dropForeignOfTask(ctx, requests) })
		})
	}
	return lookups.Wait()
}

// dropForeignOfTask does the work of dropForeign for requests of one task.
func (c *collector) dropForeignOfTask(ctx context.Context, requests []*agentlink.Request) error {
	for n, r := range requests {
		hosts, err := c.hosts.of(ctx, r.Task, r.Results)
		if errors.Is(err, taskstore.ErrNotFound) {
			for _, r := range requests[n:] { // consistently, even if the task appears in the meantime
				for i := range r.Results {
					r.Foreign = append(r.Foreign, r.Results[i].Item)
				}
				r.Results = nil
			}
			return nil
		}
		if err != nil {
			return err
		}
		c.dropForeignResults(r, hosts)
	}
	return nil
}

// dropForeignResults is dropForeign for one request; hosts[n] is the host of r.Results[n].
func (c *collector) dropForeignResults(r *agentlink.Request, hosts []procfleet.Host) {
	own := make([]procfleet.Result, 0, len(r.Results))
	for n := range r.Results {
		if hosts[n] == r.Host {
			own = append(own, r.Results[n])
		} else {
			r.Foreign = append(r.Foreign, r.Results[n].Item)
		}
	}
	if foreign := len(r.Results) - len(own); foreign > 0 {
		c.Link.Metrics.Rejected(agentproto.TypeResults, fleetkey.ErrForged)
		c.Log.WithFields(logrus.Fields{"host": r.Host.String(), "task": r.Task, "items": foreign, "remedy": "the identity of this host may be stolen: re-enroll it if this repeats"}).
			Error("results dropped: items of another host")
	}
	r.Results = own
}
