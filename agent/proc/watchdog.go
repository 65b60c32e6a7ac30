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

	// queueTimeout bounds the wait for reads of others. On a busy host these are slow, but do
	// not hang.
	queueTimeout = 15 * time.Second

	// maxReads bounds the concurrent reads, and so the goroutines that are blocked in hanging
	// file systems.
	maxReads = 64

	// limitParts is the number of parts in which the time of a read is counted. Parts that a host
	// without a free processor makes longer count once.
	limitParts = 20
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
	return &watchdog{slots: make(chan struct{}, maxReads), stuck: map[string]int{}}
}

// guard returns the result of read, or errFileBlocked after the limit or when ctx ends. The
// limit begins with the read, which may wait for other reads before.
func guard[T any](ctx context.Context, w *watchdog, limit time.Duration, key string, read func() T) (T, error) {
	var nothing T
	if w.isStuck(key) || !w.begin(ctx) {
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
	tick := time.NewTicker(limit / limitParts)
	defer tick.Stop()
	for passed := 0; passed < limitParts && ctx.Err() == nil; {
		select {
		case got := <-result:
			return got, nil
		case <-tick.C:
			passed++
		case <-ctx.Done():
		}
	}
	w.addStuck(key, 1)
	close(abandoned)
	return nothing, errFileBlocked
}

// begin waits until another read may begin. It returns false at once if every place belongs
// to a read that hangs.
func (w *watchdog) begin(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		return true
	default:
	}
	if w.allStuck() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *watchdog) allStuck() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, reads := range w.stuck {
		n += reads
	}
	return n >= cap(w.slots)
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
