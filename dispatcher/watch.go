package dispatcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// Hints are notifications that tasks changed, as *bus.Bus delivers them. They may
// be late or lost.
type Hints interface {
	// Follow calls hinted for every notification about a task until stop is called;
	// call stop once. The argument over means that the task ended. The function hinted
	// must not block.
	Follow(ctx context.Context, id procfleet.TaskID, hinted func(over bool)) (stop func(), err error)
	// Hint notifies followers of a task that it changed.
	Hint(id procfleet.TaskID, over bool) error
	// Hold notifies workers that a task was paused.
	Hold(id procfleet.TaskID) error
}

// watches holds the topics of all watched tasks. The watchers of a task share one
// topic, so each change costs one subscription, one read of the store and one encoding.
// A topic publishes by replacing its last event and waking its watchers. It waits for
// none of them, so a slow watcher receives only the newest event.
type watches struct {
	store   Store
	hints   Hints // nil: tasks are polled
	timing  watchTiming
	limit   int           // maximum number of watchers
	reading chan struct{} // limits concurrent reads
	metrics *dispatcherMetrics
	log     logrus.FieldLogger
	failing oncePerSecond

	life    context.Context //nolint:containedctx // parent context of every topic; ended by stop
	endLife context.CancelFunc

	mu       sync.Mutex
	watchers int
	feeds    int                 // streams of the events of all tasks
	topics   map[topicKey]*topic // running topics
	running  sync.WaitGroup      // counts the goroutines of topics
}

type watchTiming struct {
	gap       time.Duration // minimum time between two reads of a task after hints
	endGap    time.Duration // the same after a hint that the task ended
	poll      time.Duration // time between two reads of a task without hints
	read      time.Duration // timeout of one read
	retryMin  time.Duration // delay before the first retry of a failed read; doubles up to retryMax
	retryMax  time.Duration
	keepAlive time.Duration // between keep-alive comments of a stream
}

var defaultWatchTiming = watchTiming{
	gap: 200 * time.Millisecond, endGap: 10 * time.Millisecond, poll: 2 * time.Second,
	read: 10 * time.Second, retryMin: 250 * time.Millisecond, retryMax: 5 * time.Second, keepAlive: 15 * time.Second,
}

// watchReads is the maximum number of tasks that are read at the same time. If many
// tasks are watched and the store is slow, each task is read less often instead of all
// at once.
const watchReads = 16

func newWatches(cfg *Config, store Store, metrics *dispatcherMetrics, log logrus.FieldLogger) *watches {
	life, endLife := context.WithCancel(context.Background())
	return &watches{
		life: life, endLife: endLife, topics: make(map[topicKey]*topic),
		store: store, hints: cfg.Hints, timing: defaultWatchTiming, limit: cfg.Limits.Watchers,
		reading: make(chan struct{}, watchReads), metrics: metrics, log: log,
	}
}

// topicKey includes the call, because each call encodes a task in its own form.
type topicKey struct {
	call string
	task procfleet.TaskID
}

// encodeTask encodes a task as the data of an event.
type encodeTask func(*procfleet.Task) dialect.Reply

// join adds a watcher to a topic; the watcher must call leave. The error is a
// [*dialect.Error] if there are too many watchers or the dispatcher is stopping.
func (h *watches) join(key topicKey, encode encodeTask) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.life.Err() != nil:
		return nil, errStopping
	case h.watchers >= h.limit:
		return nil, &dialect.Error{
			Kind: dialect.Unavailable, RetryAfter: retryFull,
			Problem: fmt.Sprintf("%d watchers are the limit of this dispatcher; request the task itself, or try again later", h.limit),
		}
	}
	t := h.topics[key]
	if t == nil {
		t = h.open(key, encode)
	}
	t.watchers++
	h.watchers++
	h.metrics.watchers.Add(context.Background(), 1)
	return t, nil
}

var errStopping = &dialect.Error{Kind: dialect.Unavailable, Problem: "this dispatcher is being stopped; try again", RetryAfter: retryUnavailable}

// open starts a topic. The topic ends when its last watcher leaves or no more events
// can follow. h.mu is held.
func (h *watches) open(key topicKey, encode encodeTask) *topic {
	ctx, cancel := context.WithCancel(h.life) // independent of the request of the first watcher
	t := &topic{
		hub: h, key: key, encode: encode, cancel: cancel,
		changed: make(chan struct{}, 1), over: make(chan struct{}, 1),
		published: make(chan struct{}), attempted: make(chan struct{}),
	}
	h.topics[key] = t
	h.metrics.watchedTasks.Add(context.Background(), 1)
	h.running.Go(func() {
		defer h.close(t)
		t.run(ctx)
	})
	return t
}

func (h *watches) leave(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers--
	h.metrics.watchers.Add(context.Background(), -1)
	if t.watchers--; t.watchers == 0 {
		t.cancel()
		h.forget(t)
	}
}

// close removes a topic whose run has returned. A watcher that joins later opens a new
// topic.
func (h *watches) close(t *topic) {
	h.mu.Lock()
	h.forget(t)
	h.mu.Unlock()
	t.cancel()
	h.metrics.watchedTasks.Add(context.Background(), -1)
	t.end()
}

// forget removes a topic from the map; it is safe to call again. h.mu is held.
func (h *watches) forget(t *topic) {
	if h.topics[t.key] == t {
		delete(h.topics, t.key)
	}
}

// stop ends all streams and rejects new ones.
func (h *watches) stop() {
	h.mu.Lock() // waits for every join in progress
	defer h.mu.Unlock()
	h.endLife()
}

// wait returns when all topics have ended after stop.
func (h *watches) wait() { h.running.Wait() }

// enterFeed admits a stream of the events of all tasks, which ends with h.life. It is not in
// running: its reader ends as soon as life does.
func (h *watches) enterFeed() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil {
		return errStopping
	}
	if h.feeds >= maxFeeds {
		return &dialect.Error{
			Kind: dialect.Unavailable, RetryAfter: retryFull,
			Problem: fmt.Sprintf("%d streams of the events of all tasks are the limit of this dispatcher; try again later", maxFeeds),
		}
	}
	h.feeds++
	h.metrics.watchers.Add(context.Background(), 1)
	return nil
}

func (h *watches) leaveFeed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.feeds--
	h.metrics.watchers.Add(context.Background(), -1)
}

// pause waits for d and returns true; it returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter returns d ± 25 %, so that many waits do not end at the same time.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.5*float64(d))
}
