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
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	// newTasksPart is the fraction of maxmemory up to which new tasks are stored.
	// Existing tasks need the rest until they end: short results of a task on many
	// hosts occupy two thirds of the memory of the open task.
	newTasksPart = 0.5
	// memoryAge is the maximum age of a reading of the servers' memory use.
	memoryAge = time.Second
	// taskMemory and itemMemory are the estimated bytes per task and per item, by which
	// a reading is corrected until the next one.
	taskMemory, itemMemory = 2048, 80
)

// headroom tracks the memory that is left for new tasks.
type headroom struct {
	mu   sync.Mutex
	at   time.Time // time of the last reading
	left int64     // bytes left on the fullest server
}

// reserve subtracts the memory of a new task from the last reading. It reports whether
// enough was left.
func (h *headroom) reserve(bytes int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left < bytes {
		return false
	}
	h.left -= bytes
	return true
}

// stale reports whether a new reading is due, to only one of several concurrent
// callers.
func (h *headroom) stale() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < memoryAge {
		return false
	}
	h.at = time.Now()
	return true
}

func (h *headroom) set(left int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = left
}

// checkHeadroom returns [taskstore.ErrFull] if too little memory is left for a new
// task. It returns nil for servers without maxmemory, and if the user may not run INFO.
func (s *Store) checkHeadroom(ctx context.Context, d *taskstore.Draft) error {
	if s.headroom.stale() {
		s.readHeadroom(ctx)
	}
	need := int64(taskMemory)
	for i := range d.Chunks {
		need += itemMemory * int64(len(d.Chunks[i].Items))
	}
	if s.headroom.reserve(need) {
		return nil
	}
	return fmt.Errorf("%w: Redis uses more than %d %% of its maxmemory", taskstore.ErrFull, int(100*newTasksPart))
}

// readHeadroom reads the memory use of every server. If a server is unavailable, the
// last reading remains in effect: creating a task on that server fails anyway.
func (s *Store) readHeadroom(ctx context.Context) {
	var mu sync.Mutex
	least := int64(math.MaxInt64)
	read := func(ctx context.Context, server redis.Cmdable) error {
		info, err := server.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		least = min(least, headroomIn(info))
		return nil
	}
	var err error
	if cluster, ok := s.conn.Client().(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error { return read(ctx, server) })
	} else {
		err = read(ctx, s.conn.Client())
	}
	switch {
	case err == nil:
		s.headroom.set(least)
	case !redisconn.IsTransient(err) && ctx.Err() == nil: // the user may not run INFO
		s.headroom.set(math.MaxInt64)
	}
}

// headroomIn returns the bytes left for new tasks according to INFO.
func headroomIn(info string) int64 {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(redisconn.InfoField(info, name), 10, 64)
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

// findRepeat finds the task that an earlier request with the same key created.
// Returning it needs no memory.
func (m *maker) findRepeat(ctx context.Context) error {
	if m.draft.IdempotencyKey == "" {
		return nil
	}
	var has *redis.StringCmd
	if err := m.store.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		has = pipe.Get(ctx, m.store.keys.request(m.draft.Application, m.draft.IdempotencyKey))
	}); err != nil {
		return err
	}
	n, err := strconv.ParseInt(has.Val(), 10, 64)
	if err != nil {
		return nil //nolint:nilerr // the key has no task
	}
	_, err = m.free(ctx, procfleet.Number(n))
	return err
}
