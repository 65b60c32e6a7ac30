// Package catalogtest tests implementations of [catalog.Store]. Every store must pass
// [Run].
package catalogtest

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// Store is the tested part of a store: the catalog and the clock of a task store.
type Store interface {
	catalog.Store
	taskstore.Clock
}

// Harness creates the stores that are tested.
type Harness struct {
	// Open returns an empty store and closes it when the test ends.
	Open func(t testing.TB) Store
	// Reopen closes old as abruptly as possible and returns a store on the data that
	// remains. nil means that the store has no persistent data.
	Reopen func(t testing.TB, old Store) Store
	// Light leaves out heavy checks, for a store that differs from another one only in how
	// its server is reached.
	Light bool
	// Long makes random calls more often, and calls about more hosts.
	Long bool
}

// Subject is the store that one check tests, with its capabilities.
type Subject struct {
	Store
	Reopen func() Store

	long bool
}

// T is the part of [testing.T] that checks use.
type T = storetest.T

// Check tests one property of the contract.
type Check struct {
	Name string
	Fn   func(ctx context.Context, t T, s Subject)
	// Reopens means that the check requires [Harness.Reopen].
	Reopens bool
	// Heavy checks make random, simultaneous or very many calls. Once per kind of store is
	// enough, see [Harness.Light].
	Heavy bool
}

// Err runs the check outside of a test. It returns nil if the store passed.
func (c Check) Err(ctx context.Context, s Subject) error {
	return storetest.Findings(func(t T) { c.Fn(ctx, t, s) })
}

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, part := range [][]Check{registrationChecks(), identityChecks(), reportChecks(), entryChecks(), pageChecks(), groupChecks(), labelChecks(), freezeChecks(), policyChecks(), scheduleChecks(), webhookChecks(), templateChecks(), bindingChecks(), searchChecks(), topologyChecks(), storeChecks(), modelChecks()} {
		all = append(all, part...)
	}
	return all
}

// checkTime is the time limit of one check, so that a store that blocks fails.
const checkTime = 2 * time.Minute

// Run runs every check with a new store of h.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range Checks() {
		if c.Reopens && h.Reopen == nil || h.Light && c.Heavy {
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

// Subject opens a store for one check.
func (h Harness) Subject(tb testing.TB) Subject {
	tb.Helper()
	store := h.Open(tb)
	s := Subject{Store: store, long: h.Long}
	if h.Reopen != nil {
		s.Reopen = func() Store { store = h.Reopen(tb, store); return store }
	}
	return s
}

// rounds returns how often a check repeats calls, or about how many hosts it calls.
func (s Subject) rounds(everyday, long int) int {
	if s.long {
		return long
	}
	return everyday
}

func must(t T, err error, doing string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", doing, err)
	}
}

// equal reports whether got equals want; if not, the check fails. Times are equal only
// if both are in UTC.
func equal(t T, what string, got, want any) bool {
	t.Helper()
	if reflect.DeepEqual(got, want) { // fast path: cmp.Diff is much slower
		return true
	}
	diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(procfleet.Host{}, time.Time{}, catalog.Value{}, procfleet.Amount{}))
	if len(diff) > 4000 {
		diff = diff[:4000] + "\n…"
	}
	if diff != "" {
		t.Errorf("%s is not as it should be (-want +got):\n%s", what, diff)
	}
	return diff == ""
}

// together runs n calls concurrently and waits for all of them. fn must not end its
// goroutine: it must call Errorf and return instead of calling Fatalf.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}
