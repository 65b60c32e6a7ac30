// Package recent keeps in memory what a store has made of its data for
// businesses that were asked about lately.
package recent

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

const (
	// For is how long something is kept after it was last used.
	For = 10 * time.Minute
	// Most bounds for how many businesses something is kept.
	Most = 1000
)

// Businesses keeps something for each business. It is safe for concurrent use.
type Businesses[T any] struct {
	fresh func() *T

	mu sync.Mutex
	of map[catalog.Business]*entry[T]
}

type entry[T any] struct {
	it   *T
	used time.Time
}

// New keeps nothing yet; fresh makes what is to be kept.
func New[T any](fresh func() *T) *Businesses[T] {
	return &Businesses[T]{fresh: fresh, of: map[catalog.Business]*entry[T]{}}
}

// Use returns what is kept for b, something fresh if nothing is.
func (r *Businesses[T]) Use(b catalog.Business, now time.Time) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.of[b]
	if kept == nil {
		if len(r.of) >= Most {
			r.forgetOldest()
		}
		kept = &entry[T]{it: r.fresh()}
		r.of[b] = kept
	}
	kept.used = now
	return kept.it
}

// Kept returns what is kept for b, or nil; that is no use of it.
func (r *Businesses[T]) Kept(b catalog.Business) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept := r.of[b]; kept != nil {
		return kept.it
	}
	return nil
}

// Forget lets go of what was not used for [For].
func (r *Businesses[T]) Forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for b, kept := range r.of {
		if now.Sub(kept.used) >= For {
			delete(r.of, b)
		}
	}
}

func (r *Businesses[T]) forgetOldest() {
	var oldest catalog.Business
	for b, kept := range r.of {
		if first := r.of[oldest]; first == nil || kept.used.Before(first.used) {
			oldest = b
		}
	}
	delete(r.of, oldest)
}
