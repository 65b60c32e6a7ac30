package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// startLimiter delays automatic starts, so that restarting all processes of a host does not
// overload it. It bounds concurrent starts and, after a burst, their rate, and admits none
// while the host cannot spawn more processes. Operations are not limited.
type startLimiter struct {
	every time.Duration // time per start after the burst is used up
	burst int

	mu       sync.Mutex
	free     int // further starts that may run concurrently
	tokens   int // starts that may begin now
	gained   time.Time
	paused   time.Time       // no start begins before this time
	waiting  []*waitingStart // waiting starts, longest due first
	awakened *time.Timer
}

// waitingStart is an automatic start that waits to be admitted.
type waitingStart struct {
	since    time.Time
	admitted chan struct{}
}

func newStartLimiter(limit, burst int, every time.Duration) *startLimiter {
	return &startLimiter{every: every, burst: burst, free: limit, tokens: burst, gained: time.Now()}
}

// acquire waits until the start is admitted; it reports false if ctx ended first. Starts are
// admitted in the order of since, when they became due, so that a start that yielded does not
// lose its turn. Call release after a start that was admitted.
func (l *startLimiter) acquire(ctx context.Context, since time.Time) bool {
	w := &waitingStart{since: since, admitted: make(chan struct{})}
	l.enqueue(w)
	select {
	case <-w.admitted:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	at := slices.Index(l.waiting, w)
	if at >= 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	l.mu.Unlock()
	if at < 0 { // it was admitted when ctx ended
		l.release(false)
	}
	return false
}

func (l *startLimiter) enqueue(w *waitingStart) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(l.waiting, w, func(other, w *waitingStart) int {
		return cmp.Or(other.since.Compare(w.since), -1) // after the starts with the same time
	})
	l.waiting = slices.Insert(l.waiting, at, w)
	l.admit()
}

// release ends an admitted start. A start that ran no command returns its token.
func (l *startLimiter) release(ran bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free++
	if !ran {
		l.tokens = min(l.tokens+1, l.burst)
	}
	l.admit()
}

// pause admits no start for d. It reports false if the limiter was paused already.
func (l *startLimiter) pause(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	was := now.Before(l.paused)
	l.paused = now.Add(d)
	return !was
}

// admit admits the next starts, and arms a timer for the start after them.
func (l *startLimiter) admit() {
	now := time.Now()
	l.gain(now)
	for len(l.waiting) > 0 && l.free > 0 && l.tokens > 0 && !now.Before(l.paused) {
		l.free--
		l.tokens--
		close(l.waiting[0].admitted)
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
	if len(l.waiting) == 0 || l.free == 0 {
		return // enqueue and release call admit again
	}
	next := l.paused
	if byToken := l.gained.Add(l.every); l.tokens == 0 && byToken.After(next) {
		next = byToken
	}
	if l.awakened != nil {
		l.awakened.Stop()
	}
	l.awakened = time.AfterFunc(next.Sub(now), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.admit()
	})
}

func (l *startLimiter) gain(now time.Time) {
	n := int(now.Sub(l.gained) / l.every)
	l.gained = l.gained.Add(time.Duration(n) * l.every)
	if l.tokens += n; l.tokens >= l.burst {
		l.tokens, l.gained = l.burst, now
	}
}

// delayStarts pauses automatic starts because the host could not spawn another command.
func (e *Engine) delayStarts(reason string) {
	pause := e.cfg.Timing.HostPause
	e.runs.pause(pause)
	if !e.starts.pause(pause) {
		return // reported already
	}
	e.cfg.Log.WithField("reason", reason).WithField("pause", pause.String()).Warn("host out of processes, automatic starts delayed")
	e.cfg.Emit(agentproto.Event{
		Kind:    agentproto.EventStartsPaused,
		Message: fmt.Sprintf("the host could not run another process, automatic starts wait for %s: %s", pause, reason),
		Details: map[string]any{"pause_s": pause.Seconds()},
	})
}
