package operate

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// queue passes starts to a start limiter and records the order in which they are admitted.
type queue struct {
	t       *testing.T
	limiter *startLimiter
	begin   time.Time

	mu       sync.Mutex
	admitted []int
}

func newQueue(t *testing.T, limit, burst int) *queue {
	t.Helper()
	return &queue{t: t, limiter: newStartLimiter(limit, burst, 3*time.Second), begin: time.Now()}
}

// wait acquires, in a goroutine, a start that is due name seconds after the beginning.
func (q *queue) wait(ctx context.Context, name int) {
	go func() {
		if q.limiter.acquire(ctx, q.begin.Add(time.Duration(name)*time.Second)) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.admitted = append(q.admitted, name)
		}
	}()
	synctest.Wait()
}

// have fails unless exactly these starts have been admitted.
func (q *queue) have(names ...int) {
	q.t.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Equal(q.admitted, names) {
		q.t.Fatalf("after %v %v were admitted, want %v", time.Since(q.begin), q.admitted, names)
	}
}

func TestStartLimiterAdmitsABurstThenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 100, 2)
		for name := range 5 {
			q.wait(t.Context(), name)
		}
		q.have(0, 1)
		time.Sleep(2999 * time.Millisecond)
		q.have(0, 1)
		time.Sleep(time.Millisecond)
		q.have(0, 1, 2)
		time.Sleep(6 * time.Second)
		q.have(0, 1, 2, 3, 4)
		time.Sleep(time.Hour) // no more tokens than a burst accumulate
		for name := 5; name < 9; name++ {
			q.wait(t.Context(), name)
		}
		q.have(0, 1, 2, 3, 4, 5, 6)
		time.Sleep(time.Minute)
	})
}

func TestStartLimiterAdmitsFewAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 2, 100)
		for name := range 4 {
			q.wait(t.Context(), name)
		}
		time.Sleep(time.Hour)
		q.have(0, 1)
		q.limiter.release(true)
		q.have(0, 1, 2)
		q.limiter.release(true)
		q.have(0, 1, 2, 3)
	})
}

func TestStartLimiterReturnsUnusedTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 100, 1)
		q.wait(t.Context(), 0)
		q.wait(t.Context(), 1)
		q.have(0)
		q.limiter.release(false)
		q.have(0, 1)
		q.limiter.release(true)
		q.wait(t.Context(), 2)
		q.have(0, 1)
		time.Sleep(3 * time.Second)
		q.have(0, 1, 2)
	})
}

func TestStartThatGaveWayHasItsPlaceAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1, 100)
		q.wait(t.Context(), 0)
		first, giveWay := context.WithCancel(t.Context())
		q.wait(first, 1)
		q.wait(t.Context(), 2)
		giveWay()
		synctest.Wait()
		q.wait(t.Context(), 1)
		q.limiter.release(true)
		q.have(0, 1)
		q.limiter.release(true)
		q.have(0, 1, 2)
	})
}

func TestStartThatGaveWayTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1, 2)
		ended, end := context.WithCancel(t.Context())
		end()
		for range 100 {
			q.wait(ended, 0) // admitted and canceled at the same time
		}
		q.mu.Lock()
		passed := len(q.admitted)
		q.admitted = nil
		q.mu.Unlock()
		for range passed {
			q.limiter.release(false)
		}
		q.wait(t.Context(), 1)
		q.have(1)
	})
}

func TestNothingBeginsDuringAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 8, 8)
		if !q.limiter.pause(30*time.Second) || q.limiter.pause(30*time.Second) {
			t.Fatal("the first pause is news, the second one is not")
		}
		q.wait(t.Context(), 0)
		time.Sleep(29 * time.Second)
		q.have()
		time.Sleep(time.Second)
		q.have(0)
		if !q.limiter.pause(time.Second) {
			t.Fatal("a pause after the end of another is news")
		}
	})
}
