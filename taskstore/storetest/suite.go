// Package storetest is the contract of [taskstore.Store] as something that
// runs: every store must pass [Run].
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

// Harness makes the stores that are checked. A nil capability means that the
// store does not have it, and the checks that need it are not run.
type Harness struct {
	// Open returns an empty store and closes it when the test ends.
	Open func(t testing.TB) taskstore.Store
	// Reopen ends old as abruptly as it can and returns a store on what was
	// left. Nil: the store keeps nothing outside its handle.
	Reopen func(t testing.TB, old taskstore.Store) taskstore.Store
	// Advance moves the clock of a store, also backwards. Nil: the checks
	// that need more than a few moments to pass are not run.
	Advance func(t testing.TB, s taskstore.Store, d time.Duration)
	// Orphan leaves what a dispatcher leaves that died within Create: the
	// draft's idempotency key, remembered with the id that is returned, but
	// no task. Nil: Create is one step, that cannot happen.
	Orphan func(t testing.TB, s taskstore.Store, d taskstore.Draft) procfleet.TaskID
	// Delay runs Create and calls meanwhile once, as late as possible before the
	// task is made. Nil: the checks that need it are not run.
	Delay func(t testing.TB, s taskstore.Store, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error)
	// Patience is how long a check waits for what must come; default 15 s.
	Patience time.Duration
}

// Subject is the store of one check, with its capabilities.
type Subject struct {
	taskstore.Store
	Reopen  func() taskstore.Store
	Advance func(d time.Duration)
	Orphan  func(d taskstore.Draft) procfleet.TaskID
	Delay   func(d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error)

	patience time.Duration
}

// T is the part of [testing.T] that checks use, so that the suite itself can
// be checked: see [Check.Err].
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Check is one promise of the contract.
type Check struct {
	Name string
	Fn   func(ctx context.Context, t T, s Subject)
	// Needs are the capabilities without which the check says nothing.
	Needs Needs
}

// Needs names the capabilities of a [Harness] that a check needs.
type Needs struct{ Reopen, Advance, Orphan, Delay bool }

// Runnable reports whether s has what c needs.
func (c Check) Runnable(s Subject) bool {
	return (!c.Needs.Reopen || s.Reopen != nil) &&
		(!c.Needs.Advance || s.Advance != nil) &&
		(!c.Needs.Orphan || s.Orphan != nil) &&
		(!c.Needs.Delay || s.Delay != nil)
}

// Checks returns the whole suite.
func Checks() []Check {
	var all []Check
	for _, part := range [][]Check{
		acceptanceChecks(), idempotencyChecks(), absenceChecks(), rejectionChecks(), deliveryChecks(), recordChecks(),
		resultChecks(), sweepChecks(), leaseChecks(), hostChecks(), bindingChecks(), storeChecks(), modelChecks(),
	} {
		all = append(all, part...)
	}
	return all
}

// checkTime bounds one check, so that a store that hangs is found.
const checkTime = 2 * time.Minute

// Run checks the stores that h makes, each check with a store of its own.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range Checks() {
		if !c.Runnable(h.capabilities()) {
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

// Subject opens a store for one check.
func (h Harness) Subject(tb testing.TB) Subject {
	tb.Helper()
	store := h.Open(tb)
	s := Subject{Store: store, patience: h.Patience}
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

// Err runs the check without a test and returns what it found, nil if the
// store passed.
func (c Check) Err(ctx context.Context, s Subject) error {
	return Findings(func(t T) { c.Fn(ctx, t, s) })
}

// Findings runs fn without a test and returns what it found, nil if nothing.
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

// findings is a T that remembers.
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
