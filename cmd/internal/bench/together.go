package bench

import (
	"context"
	"sync"
	"sync/atomic"
)

// together calls do with 0 to n-1, from so many goroutines, each of which
// tells its number as well. It returns the first error, after which nothing
// more is begun.
func together(ctx context.Context, n, goroutines int, do func(ctx context.Context, goroutine, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for g := range min(n, goroutines) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, g, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
