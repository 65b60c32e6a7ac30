// Package recent caches a value for each business that was used lately.
package recent

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

const (
	// For is how long a value is stored after its last use.
	For = 10 * time.Minute
	// Most is the maximum number of businesses with a value.
	Most = 1000
)

// Businesses caches one value per business. It is safe for concurrent use.
type Businesses[T any] struct {
	fresh func() *T

	mu sync.Mutex
	of map[catalog.Business]*entry[T]
}

type entry[T any] struct {
	it   *T
	used time.Time
}

// New returns an empty cache that calls fresh to create a value.
func New[T any](fresh func() *T) *Businesses[T] {
	return &Businesses[T]{fresh: fresh, of: map[catalog.Business]*entry[T]{}}
}

// Use returns the value of b. It creates the value if there is none.
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

// Kept returns the value of b, or nil. It does not count as a use.
func (r *Businesses[T]) Kept(b catalog.Business) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept := r.of[b]; kept != nil {
		return kept.it
	}
	return nil
}

// Forget evicts the values that were not used for [For].
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
