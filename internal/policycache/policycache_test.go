package policycache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

// counting is a store whose policies name the number of the read.
type counting struct {
	reads [][]string
	err   error
}

func (s *counting) Policies(_ context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	s.reads = append(s.reads, slices.Clone(namespaces))
	found := make([]catalog.RolloutPolicies, len(namespaces))
	for i := range found {
		found[i].Default = fmt.Sprintf("%s%d", namespaces[i], len(s.reads))
	}
	return found, s.err
}

func TestPoliciesAreReadAgainWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{}
		c := New(s)
		want := func(names ...string) {
			t.Helper()
			found, err := c.Policies(t.Context(), []string{"a", "b"})
			if err != nil || found[0].Default != names[0] || found[1].Default != names[1] {
				t.Errorf("found %+v, %v, want %v", found, err, names)
			}
		}
		want("a1", "b1")
		time.Sleep(MaxAge - time.Millisecond)
		want("a1", "b1")
		c.Forget("b")
		want("a1", "b2")
		time.Sleep(time.Millisecond)
		want("a3", "b2")
		if !slices.Equal(s.reads[2], []string{"a"}) {
			t.Errorf("the last read is of %v", s.reads[2])
		}
		time.Sleep(MaxAge)
		s.err = errors.New("unavailable")
		if _, err := c.Policies(t.Context(), []string{"a"}); !errors.Is(err, s.err) {
			t.Errorf("old policies without a store: %v", err)
		}
	})
}

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := New(&counting{})
	for i := range 3 * maxKept {
		if _, err := c.Policies(t.Context(), []string{fmt.Sprint(i)}); err != nil || len(c.kept) > maxKept {
			t.Fatalf("%d namespaces in memory: %v", len(c.kept), err)
		}
	}
}
