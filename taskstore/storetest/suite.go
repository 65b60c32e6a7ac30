// Package storetest checks the contract of [taskstore.Store]. Every store must pass [Run].
package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Harness opens the stores that the checks use. Reopen, Advance, Orphan and Delay are
// optional capabilities: if one is nil, the checks that need it are skipped.
type Harness struct {
	// Open returns an empty store and closes it when the test ends.
	Open func(t testing.TB) taskstore.Store
	// Reopen terminates old as abruptly as possible and returns a store that opens the
	// data of old. Nil: the store has no data outside its handle.
	Reopen func(t testing.TB, old taskstore.Store) taskstore.Store
	// Advance moves the clock of s by d, backwards if d is negative. Nil: the store's
	// clock cannot be moved.
	Advance func(t testing.TB, s taskstore.Store, d time.Duration)
	// Orphan simulates a dispatcher that died during Create: the store has the draft's
	// idempotency key with the returned id, but no task. Nil: Create is atomic, so that
	// this state cannot occur.
	Orphan func(t testing.TB, s taskstore.Store, d taskstore.Draft) procfleet.TaskID
	// Delay runs Create and calls meanwhile once, as late as possible before Create
	// writes the task. Nil: Create cannot be interrupted.
	Delay func(t testing.TB, s taskstore.Store, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error)
	// Patience is how long a check waits for an expected state; default 15 s.
	Patience time.Duration
	// Light leaves out heavy checks, for a store that differs from another one only in how
	// its server is reached.
	Light bool
	// Long repeats random and simultaneous calls more often.
	Long bool
}

// Subject is the store under test of one check, with the capabilities of its [Harness].
type Subject struct {
	taskstore.Store
	Reopen  func() taskstore.Store
	Advance func(d time.Duration)
	Orphan  func(d taskstore.Draft) procfleet.TaskID
	Delay   func(d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error)

	patience time.Duration
	long     bool
}

// T is the subset of [testing.T] that checks use. With another implementation than
// testing.T, [Check.Err] tests the checks themselves.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Check tests one guarantee of the contract.
type Check struct {
	Name string
	Fn   func(ctx context.Context, t T, s Subject)
	// Needs are the capabilities without which the check cannot run.
	Needs Needs
	// Heavy checks make random, simultaneous or very many calls. Once per kind of store is
	// enough, see [Harness.Light].
	Heavy bool
}

// Needs lists the optional capabilities of a [Harness] that a check requires.
type Needs struct{ Reopen, Advance, Orphan, Delay bool }

// Runnable reports whether s has all capabilities that c needs.
func (c Check) Runnable(s Subject) bool {
	return (!c.Needs.Reopen || s.Reopen != nil) &&
		(!c.Needs.Advance || s.Advance != nil) &&
		(!c.Needs.Orphan || s.Orphan != nil) &&
		(!c.Needs.Delay || s.Delay != nil)
}

// Checks returns all checks of the suite.
func Checks() []Check {
	var all []Check
	for _, part := range [][]Check{
		acceptanceChecks(), idempotencyChecks(), absenceChecks(), rejectionChecks(), deliveryChecks(), recordChecks(), controlChecks(),
		resultChecks(), sweepChecks(), leaseChecks(), hostChecks(), bindingChecks(), storeChecks(), rolloutChecks(), waitingChecks(), modelChecks(),
	} {
		all = append(all, part...)
	}
	return all
}

// checkTime is the time limit of one check, so that a hanging store fails the check.
const checkTime = 2 * time.Minute

// Run runs every check as a parallel subtest, each with its own store opened by h.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range Checks() {
		if !c.Runnable(h.capabilities()) || h.Light && c.Heavy {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), checkTime)
			defer cancel()
			c.Fn(ctx, t, h.Subject(t))
		})
	}
}

func (h Harness) capabilities() Subject {
	var s Subject
	if h.Reopen != nil {
		s.Reopen = func() taskstore.Store { return nil }
	}
	if h.Advance != nil {
		s.Advance = func(time.Duration) {}
	}
	if h.Orphan != nil {
		s.Orphan = func(taskstore.Draft) procfleet.TaskID { return "" }
	}
	if h.Delay != nil {
		s.Delay = func(taskstore.Draft, func()) (procfleet.Task, bool, error) { return procfleet.Task{}, false, nil }
	}
	return s
}

// Subject opens an empty store for one check.
func (h Harness) Subject(tb testing.TB) Subject {
	tb.Helper()
	store := h.Open(tb)
	s := Subject{Store: store, patience: h.Patience, long: h.Long}
	if s.patience == 0 {
		s.patience = 15 * time.Second
	}
	if h.Reopen != nil {
		s.Reopen = func() taskstore.Store { store = h.Reopen(tb, store); return store }
	}
	if h.Advance != nil {
		s.Advance = func(d time.Duration) { h.Advance(tb, store, d) }
	}
	if h.Orphan != nil {
		s.Orphan = func(d taskstore.Draft) procfleet.TaskID { return h.Orphan(tb, store, d) }
	}
	if h.Delay != nil {
		s.Delay = func(d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
			return h.Delay(tb, store, d, meanwhile)
		}
	}
	return s
}

// Err runs the check outside a test and returns its failures joined, or nil if s passed.
func (c Check) Err(ctx context.Context, s Subject) error {
	return Findings(func(t T) { c.Fn(ctx, t, s) })
}

// Findings runs fn outside a test and returns the reported failures joined, nil if none.
func Findings(fn func(t T)) error {
	f := &findings{}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer func() {
			if p := recover(); p != nil {
				f.Errorf("panic: %v", p)
			}
		}()
		fn(f)
	}()
	<-over
	return errors.Join(f.errs...)
}

// findings is a [T] that collects failures as errors.
type findings struct {
	mu   sync.Mutex
	errs []error
}

func (f *findings) Helper() {}

func (f *findings) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, fmt.Errorf(format, args...))
}

func (f *findings) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
