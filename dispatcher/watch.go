package dispatcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// Hints are notifications that tasks changed, as *bus.Bus delivers them. They may
// be late or lost.
type Hints interface {
	// Follow calls hinted for every notification about a task until stop is called;
	// call stop once. The argument over means that the task ended. The function hinted
	// must not block.
	Follow(ctx context.Context, id procfleet.TaskID, hinted func(over bool)) (stop func(), err error)
}

// watches holds the topics of all watched tasks. The watchers of a task share one
// topic, so each change costs one subscription, one read of the store and one encoding.
// A topic publishes by replacing its last event and waking its watchers. It waits for
// none of them, so a slow watcher receives only the newest event.
type watches struct {
	store interface {
		Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	}
	hints   Hints // nil: tasks are polled
	timing  watchTiming
	limit   int           // maximum number of watchers
	reading chan struct{} // limits concurrent reads
	metrics *watchMetrics
	log     logrus.FieldLogger
	failing oncePerSecond

	life    context.Context //nolint:containedctx // parent context of every topic; ended by stop
	endLife context.CancelFunc

	mu       sync.Mutex
	watchers int
	topics   map[topicKey]*topic // running topics
	running  sync.WaitGroup      // counts the goroutines of topics
}

type watchTiming struct {
	gap      time.Duration // minimum time between two reads of a task after hints
	endGap   time.Duration // the same after a hint that the task ended
	poll     time.Duration // time between two reads of a task without hints
	read     time.Duration // timeout of one read
	retryMin time.Duration // delay before the first retry of a failed read; doubles up to retryMax
	retryMax time.Duration
	still    time.Duration // between keep-alive comments of a stream
}

var defaultWatchTiming = watchTiming{
	gap: 200 * time.Millisecond, endGap: 10 * time.Millisecond, poll: 2 * time.Second,
	read: 10 * time.Second, retryMin: 250 * time.Millisecond, retryMax: 5 * time.Second, still: 15 * time.Second,
}

// watchReads is the maximum number of tasks that are read at the same time. If many
// tasks are watched and the store is slow, each task is read less often instead of all
// at once.
const watchReads = 16

func newWatches(cfg *Config, store Queries, metrics *watchMetrics, log logrus.FieldLogger) *watches {
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
	h.metrics.watchers(1)
	return t, nil
}

var errStopping = &dialect.Error{Kind: dialect.Unavailable, Problem: "this dispatcher is being stopped; try again", RetryAfter: retryAway}

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
	h.metrics.topics(1)
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
	h.metrics.watchers(-1)
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
	h.metrics.topics(-1)
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

// topic is one watched task.
type topic struct {
	hub    *watches
	key    topicKey
	encode encodeTask
	cancel context.CancelFunc
	// changed and over hold the hints that arrived after the last read began.
	changed, over chan struct{}
	watchers      int // guarded by hub.mu

	mu    sync.Mutex
	last  *event    // nil before the first successful read
	at    time.Time // when the task was last read
	err   error     // error of the last read
	ended bool      // no more events follow
	// published is closed at the next event, and attempted at the next read. Both are
	// closed when the topic ends.
	published, attempted chan struct{}
}

// run reads the task whenever it may have changed. It returns when the task is over,
// the first read fails, the task no longer exists, or ctx ends.
func (t *topic) run(ctx context.Context) {
	timing := &t.hub.timing
	var unfollow func()
	defer func() {
		if unfollow != nil {
			unfollow()
		}
	}()
	for retry := timing.retryMin; ; {
		began := time.Now()
		e, err := t.read(ctx)
		if ctx.Err() != nil {
			return
		}
		first := t.publish(e, began, err)
		switch {
		case err != nil && (first || errors.Is(err, taskstore.ErrNotFound)):
			return
		case err != nil:
			t.logFailure(err)
			if !pause(ctx, jitter(retry)) {
				return
			}
			retry = min(2*retry, timing.retryMax)
			continue
		case e.over:
			return
		}
		retry = timing.retryMin
		if unfollow == nil && t.hub.hints != nil {
			if unfollow = t.follow(ctx); unfollow != nil {
				continue // read again: changes before the subscription sent no hints
			}
		}
		if !t.rest(ctx, began) {
			return
		}
	}
}

// read reads the task from the store. It converts a panic to an error, because a panic
// must not end the dispatcher.
func (t *topic) read(ctx context.Context) (e *event, err error) {
	select {
	case t.hub.reading <- struct{}{}:
		defer func() { <-t.hub.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	for _, hinted := range []chan struct{}{t.changed, t.over} { // hints before this read are covered by it
		select {
		case <-hinted:
		default:
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.hub.timing.read)
	defer cancel()
	task, err := t.hub.store.Task(ctx, t.key.task)
	if err != nil {
		return nil, err
	}
	return newEvent(&task, t.encode)
}

// publish stores the result of a read, and wakes the watchers if the event is new. It
// reports whether no event existed before.
func (t *topic) publish(e *event, at time.Time, err error) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = t.last == nil
	if t.err = err; err == nil {
		t.at = at
		if first || e.id != t.last.id {
			t.last = e
			close(t.published)
			t.published = make(chan struct{})
		}
	}
	close(t.attempted)
	t.attempted = make(chan struct{})
	return first
}

func (t *topic) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.published)
	close(t.attempted)
}

func (t *topic) logFailure(err error) {
	if t.hub.failing.due(time.Now()) {
		t.hub.log.WithError(err).WithField("task", t.key.task).Warn("watched tasks unreadable, retrying")
	}
}

// follow subscribes to the task's hints; it returns nil if the subscription fails.
func (t *topic) follow(ctx context.Context) (unfollow func()) {
	unfollow, err := t.hub.hints.Follow(ctx, t.key.task, t.hint)
	if err != nil {
		t.hub.log.WithError(err).WithField("task", t.key.task).Debug("progress subscription failed, retrying")
		return nil
	}
	return unfollow
}

// hint requests a read of the task.
func (t *topic) hint(over bool) {
	hinted := t.changed
	if over {
		hinted = t.over
	}
	select {
	case hinted <- struct{}{}:
	default:
	}
}

// rest waits until the task must be read again; read is the time of its last read. It
// returns false if ctx ends first.
func (t *topic) rest(ctx context.Context, read time.Time) bool {
	timing := &t.hub.timing
	select {
	case <-ctx.Done():
		return false
	case <-time.After(jitter(timing.poll)):
		return true
	case <-t.over:
	case <-t.changed:
		select {
		case <-ctx.Done():
			return false
		case <-time.After(timing.gap - time.Since(read)):
			return true
		case <-t.over:
		}
	}
	return pause(ctx, timing.endGap-time.Since(read))
}

// fresh returns the current event: the last event if it was read within the gap before
// this call, or else the event of the next read.
func (t *topic) fresh(ctx context.Context) (*event, error) {
	joined := time.Now()
	for {
		t.mu.Lock()
		last, at, err, ended, attempted := t.last, t.at, t.err, t.ended, t.attempted
		t.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case last != nil && (last.over || joined.Sub(at) <= t.hub.timing.gap):
			return last, nil
		case ended:
			return nil, errStopping
		}
		t.hint(false)
		select {
		case <-attempted:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// newest returns the last event, a channel that is closed when the next event is
// published or the topic ends, and whether the topic has ended.
func (t *topic) newest() (last *event, published <-chan struct{}, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.published, t.ended
}

// event is the encoded state of a task at one moment, shared by all its watchers.
type event struct {
	id   string
	made procfleet.Task // has only the id, application and business
	over bool           // the task is over
	text []byte         // the event's text from its id line to the empty line
}

// newEvent returns the event of a task. Its id is a digest of the content, so that all
// dispatchers assign the same id.
func newEvent(task *procfleet.Task, encode encodeTask) (*event, error) {
	line, err := encode(task).JSON()
	if err != nil {
		return nil, fmt.Errorf("encode task %s: %w", task.ID, err)
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	sum := sha256.Sum256(line)
	id := hex.EncodeToString(sum[:8])
	made := procfleet.Task{ID: task.ID, Application: task.Application, Business: task.Business}
	return &event{id: id, made: made, over: task.State.Done(), text: fmt.Appendf(nil, "id: %s\ndata: %s\n\n", id, line)}, nil
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
