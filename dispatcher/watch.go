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

// Hints say that tasks changed; *bus.Bus does. They may be late or lost.
type Hints interface {
	// Follow has hinted called for every hint about a task from now on, over
	// if it says that the task's end has come, until the caller calls stop,
	// once. The function hinted must not block.
	Follow(ctx context.Context, id procfleet.TaskID, hinted func(over bool)) (stop func(), err error)
}

// watches is everything that is watched at this dispatcher. Whoever watches
// the same task shares one topic: one subscription to its hints, one read of
// the store for a change, one encoding of it. A topic publishes by replacing
// its last event and waking its watchers, so it waits for none of them, and a
// slow one finds only the newest.
type watches struct {
	store interface {
		Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	}
	hints    Hints // nil: tasks are only read from time to time
	timing   watchTiming
	limit    int           // watchers
	reading  chan struct{} // has room for the reads under way
	measures *watchMeasures
	log      logrus.FieldLogger
	failing  oncePerSecond

	life    context.Context //nolint:containedctx // of every topic; ended by stop
	endLife context.CancelFunc

	mu       sync.Mutex
	watchers int
	topics   map[topicKey]*topic // those that run
	running  sync.WaitGroup      // topics
}

type watchTiming struct {
	gap      time.Duration // between two reads of a task because it changed
	endGap   time.Duration // the same because it is over
	poll     time.Duration // between two reads of a task although nothing is known to have changed
	read     time.Duration // for one read
	retryMin time.Duration // before a failed read is repeated, doubling
	retryMax time.Duration
	still    time.Duration // between signs that a stream is alive
}

var defaultWatchTiming = watchTiming{
	gap: 200 * time.Millisecond, endGap: 10 * time.Millisecond, poll: 2 * time.Second,
	read: 10 * time.Second, retryMin: 250 * time.Millisecond, retryMax: 5 * time.Second, still: 15 * time.Second,
}

// watchReads is how many tasks are read at once: when many are watched and the
// store is slow, they are read less often instead of all at the same time.
const watchReads = 16

func newWatches(cfg *Config, store Queries, measures *watchMeasures, log logrus.FieldLogger) *watches {
	life, endLife := context.WithCancel(context.Background())
	return &watches{
		life: life, endLife: endLife, topics: make(map[topicKey]*topic),
		store: store, hints: cfg.Hints, timing: defaultWatchTiming, limit: cfg.Limits.Watchers,
		reading: make(chan struct{}, watchReads), measures: measures, log: log,
	}
}

// topicKey has the call, because each has its own form of a task.
type topicKey struct {
	call string
	task procfleet.TaskID
}

// encodeTask is how a call shows a task.
type encodeTask func(*procfleet.Task) dialect.Reply

// join adds a watcher to a topic, which must leave it. The error is one for
// the caller: there are too many, or the dispatcher stops.
func (h *watches) join(key topicKey, encode encodeTask) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.life.Err() != nil:
		return nil, errStopping
	case h.watchers >= h.limit:
		return nil, &dialect.Error{
			Kind: dialect.Unavailable, RetryAfter: retryFull,
			Problem: fmt.Sprintf("%d watchers are as many as this dispatcher takes; ask for the task itself, or come again later", h.limit),
		}
	}
	t := h.topics[key]
	if t == nil {
		t = h.open(key, encode)
	}
	t.watchers++
	h.watchers++
	h.measures.watchers(1)
	return t, nil
}

var errStopping = &dialect.Error{Kind: dialect.Unavailable, Problem: "this dispatcher is being stopped; come again", RetryAfter: retryAway}

// open starts a topic; it ends with its last watcher, or when it has nothing
// more to say. h.mu is held.
func (h *watches) open(key topicKey, encode encodeTask) *topic {
	ctx, cancel := context.WithCancel(h.life) // the watchers' requests come and go
	t := &topic{
		hub: h, key: key, encode: encode, cancel: cancel,
		changed: make(chan struct{}, 1), over: make(chan struct{}, 1),
		news: make(chan struct{}), looked: make(chan struct{}),
	}
	h.topics[key] = t
	h.measures.topics(1)
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
	h.measures.watchers(-1)
	if t.watchers--; t.watchers == 0 {
		t.cancel()
		h.forget(t)
	}
}

// close ends a topic that has run: who joins now begins another.
func (h *watches) close(t *topic) {
	h.mu.Lock()
	h.forget(t)
	h.mu.Unlock()
	t.cancel()
	h.measures.topics(-1)
	t.end()
}

// forget is called with h.mu held, once or twice for a topic.
func (h *watches) forget(t *topic) {
	if h.topics[t.key] == t {
		delete(h.topics, t.key)
	}
}

// stop ends all streams. There are no others afterwards.
func (h *watches) stop() {
	h.mu.Lock() // whoever is about to join has joined
	defer h.mu.Unlock()
	h.endLife()
}

// wait returns when no topic runs any more after stop.
func (h *watches) wait() { h.running.Wait() }

// topic is one watched task.
type topic struct {
	hub    *watches
	key    topicKey
	encode encodeTask
	cancel context.CancelFunc
	// changed and over hold the hints that were not acted on yet.
	changed, over chan struct{}
	watchers      int // guarded by hub.mu

	mu    sync.Mutex
	last  *event        // nil until the task was read
	at    time.Time     // when the task was last read
	err   error         // of the last attempt to read it
	ended bool          // nothing more will come
	news  chan struct{} // closed at the next event, and at the end
	// looked is closed at the next attempt to read, and at the end.
	looked chan struct{}
}

// run reads the task whenever it may have changed, until it is over, it cannot
// be read in the first place, it is gone, or ctx ends.
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
		first := t.note(e, began, err)
		switch {
		case err != nil && (first || errors.Is(err, taskstore.ErrNotFound)):
			return
		case err != nil:
			t.complain(err)
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
				continue // what happened before was not hinted at
			}
		}
		if !t.rest(ctx, began) {
			return
		}
	}
}

// read asks the store. A panic over the answer is an error: it must not end
// the dispatcher.
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
	for _, hinted := range []chan struct{}{t.changed, t.over} { // this read answers them
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

// note keeps the outcome of a read and wakes whom it concerns; first is
// whether there was no event before.
func (t *topic) note(e *event, at time.Time, err error) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = t.last == nil
	if t.err = err; err == nil {
		t.at = at
		if first || e.id != t.last.id {
			t.last = e
			close(t.news)
			t.news = make(chan struct{})
		}
	}
	close(t.looked)
	t.looked = make(chan struct{})
	return first
}

func (t *topic) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.news)
	close(t.looked)
}

func (t *topic) complain(err error) {
	if t.hub.failing.due(time.Now()) {
		t.hub.log.WithError(err).WithField("task", t.key.task).Warn("watched tasks unreadable, retrying")
	}
}

// follow is nil if the task's hints cannot be followed now.
func (t *topic) follow(ctx context.Context) (unfollow func()) {
	unfollow, err := t.hub.hints.Follow(ctx, t.key.task, t.hint)
	if err != nil {
		t.hub.log.WithError(err).WithField("task", t.key.task).Debug("progress subscription failed, retrying")
		return nil
	}
	return unfollow
}

// hint has the task read soon.
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

// rest waits until the task, last read at the given time, is to be read
// again; false if ctx ends before.
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

// fresh returns the task as it stands: what was read last if that is only a
// moment ago, else what is read now.
func (t *topic) fresh(ctx context.Context) (*event, error) {
	joined := time.Now()
	for {
		t.mu.Lock()
		last, at, err, ended, looked := t.last, t.at, t.err, t.ended, t.looked
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
		case <-looked:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// newest returns the last event and a channel that is closed when there is
// another one, or when there will be none: then ended is true afterwards.
func (t *topic) newest() (last *event, news <-chan struct{}, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.news, t.ended
}

// event is a task at one moment, encoded once for all who watch it.
type event struct {
	id   string
	made procfleet.Task // without what changes: whose it is
	over bool           // the task is over
	text []byte         // from the id to the empty line
}

// newEvent gives the event an id that is the same at every dispatcher: it is
// made from what the event says.
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

// pause waits for d, or until ctx ends: then it is false.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter returns d, a quarter more or less, so that many do not move in step.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.5*float64(d))
}
