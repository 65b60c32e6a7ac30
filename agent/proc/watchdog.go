package proc

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fileTimeout bounds the reading of files of managed programs: a network file system
	// may hang if its server is unavailable, and such a read cannot be interrupted.
	fileTimeout = 2 * time.Second

	// commandDirTimeout bounds the check of the directory of a command. It is longer,
	// because a host that is merely busy must not fail a command, while a search is repeated.
	commandDirTimeout = 15 * time.Second

	// maxStuck bounds the goroutines that are blocked in hanging file systems.
	maxStuck = 64
)

var errFileBlocked = errors.New("the file system did not respond in time")

// watchdog runs file reads that may hang. A read that exceeds its limit is abandoned,
// and until it ends further reads with its key fail at once with errFileBlocked, so
// that repeated reads do not accumulate goroutines.
type watchdog struct {
	slots chan struct{}

	mu    sync.Mutex
	stuck map[string]int // abandoned reads that have not ended, by key
}

func newWatchdog() *watchdog {
	return &watchdog{slots: make(chan struct{}, maxStuck), stuck: map[string]int{}}
}

// guard returns the result of read, or errFileBlocked after the limit or when ctx ends.
func guard[T any](ctx context.Context, w *watchdog, limit time.Duration, key string, read func() T) (T, error) {
	var nothing T
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if w.isStuck(key) {
		return nothing, errFileBlocked
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return nothing, errFileBlocked
	}
	result, abandoned := make(chan T), make(chan struct{})
	go func() {
		defer func() { <-w.slots }()
		got := read()
		select {
		case result <- got:
		case <-abandoned:
			w.addStuck(key, -1)
		}
	}()
	select {
	case got := <-result:
		return got, nil
	case <-ctx.Done():
		w.addStuck(key, 1)
		close(abandoned)
		return nothing, errFileBlocked
	}
}

func (w *watchdog) isStuck(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stuck[key] > 0
}

func (w *watchdog) addStuck(key string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck[key] += n
	if w.stuck[key] == 0 {
		delete(w.stuck, key)
	}
}
