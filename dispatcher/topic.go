package dispatcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

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
	task procfleet.Task // has only the id, application and business
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
	return &event{
		id: id, task: procfleet.Task{ID: task.ID, Application: task.Application, Business: task.Business},
		over: task.State.Done(), text: fmt.Appendf(nil, "id: %s\ndata: %s\n\n", id, line),
	}, nil
}
