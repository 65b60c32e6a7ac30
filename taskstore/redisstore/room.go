package redisstore

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	// newTasksPart is the part of maxmemory up to which new tasks are stored.
	// The rest is for what they need until they end: short results of a task on
	// many hosts take two thirds of what the open task takes.
	newTasksPart = 0.5
	// memoryAge is how old a reading of the servers' memory may be.
	memoryAge = time.Second
	// taskRoom and itemRoom are about what a new task takes, by which a reading
	// is corrected until the next.
	taskRoom, itemRoom = 2048, 80
)

// room knows how much memory is left for new tasks.
type room struct {
	mu   sync.Mutex
	at   time.Time // of the reading
	left int64     // bytes, on the fullest server
}

// take reserves memory for a new task until the next reading, and reports
// whether that was left.
func (r *room) take(bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left < bytes {
		return false
	}
	r.left -= bytes
	return true
}

// stale reports whether a new reading is due; one caller is told so.
func (r *room) stale() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) < memoryAge {
		return false
	}
	r.at = time.Now()
	return true
}

func (r *room) set(left int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = left
}

// checkRoom returns [taskstore.ErrFull] if the servers' memory has no room for
// a new task. Servers without a limit, or that do not tell, always have.
func (s *Store) checkRoom(ctx context.Context, d *taskstore.Draft) error {
	if s.room.stale() {
		s.readRoom(ctx)
	}
	need := int64(taskRoom)
	for i := range d.Chunks {
		need += itemRoom * int64(len(d.Chunks[i].Items))
	}
	if s.room.take(need) {
		return nil
	}
	return fmt.Errorf("%w: Redis uses more than %d %% of its maxmemory", taskstore.ErrFull, int(100*newTasksPart))
}

// readRoom asks every server how much memory it uses. If one cannot be asked,
// what was read before stays: a task that is made there fails by itself.
func (s *Store) readRoom(ctx context.Context) {
	var mu sync.Mutex
	least := int64(math.MaxInt64)
	read := func(ctx context.Context, server redis.Cmdable) error {
		info, err := server.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		least = min(least, roomIn(info))
		return nil
	}
	var err error
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error { return read(ctx, server) })
	} else {
		err = read(ctx, s.client)
	}
	switch {
	case err == nil:
		s.room.set(least)
	case classify(err) != faultPassing && ctx.Err() == nil: // it may not be asked
		s.room.set(math.MaxInt64)
	}
}

// roomIn reads how many bytes are left for new tasks from what INFO answers.
func roomIn(info string) int64 {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(field(info, name), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	limit := number("maxmemory")
	if limit == 0 {
		return math.MaxInt64
	}
	return int64(newTasksPart*float64(limit)) - number("used_memory") + number("mem_not_counted_for_evict")
}

// findRepeat looks for the task that the same request made before, which needs
// no room.
func (m *maker) findRepeat(ctx context.Context) error {
	if m.draft.IdempotencyKey == "" {
		return nil
	}
	var has *redis.StringCmd
	if err := m.store.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		has = pipe.Get(ctx, m.store.keys.request(m.draft.Application, m.draft.IdempotencyKey))
	}); err != nil {
		return err
	}
	n, err := strconv.ParseInt(has.Val(), 10, 64)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	_, err = m.free(ctx, procfleet.Number(n))
	return err
}
