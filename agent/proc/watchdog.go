package proc

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fileTimeout bounds looks at files that managed programs own: they may lie
	// on a network file system whose server is gone, and such a look cannot be
	// interrupted.
	fileTimeout = 2 * time.Second

	// maxStuck bounds the goroutines that hanging file systems may hold.
	maxStuck = 64
)

var errFileBlocked = errors.New("the file system did not answer within 2s")

// watchdog runs looks at files that may hang. One that outlives its time is
// abandoned, and until it ends its key is answered with errFileBlocked at once,
// so that a key asked again and again does not collect goroutines.
type watchdog struct {
	slots chan struct{}

	mu    sync.Mutex
	stuck map[string]int // abandoned looks that have not ended
}

func newWatchdog() *watchdog {
	return &watchdog{slots: make(chan struct{}, maxStuck), stuck: map[string]int{}}
}

// guard returns what look returns, or errFileBlocked when it takes too long.
func guard[T any](ctx context.Context, w *watchdog, key string, look func() T) (T, error) {
	var nothing T
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	if w.isStuck(key) {
		return nothing, errFileBlocked
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return nothing, errFileBlocked
	}
	answer, abandoned := make(chan T), make(chan struct{})
	go func() {
		defer func() { <-w.slots }()
		got := look()
		select {
		case answer <- got:
		case <-abandoned:
			w.addStuck(key, -1)
		}
	}()
	select {
	case got := <-answer:
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
