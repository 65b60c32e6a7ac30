package worker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

// TestAStoreIsNotCalledBackBeforeItAnswered verifies that the worker does not log the store as
// recovered when it drops the release of an expired lease without a successful call.
func TestAStoreIsNotCalledBackBeforeItAnswered(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	e := start(t, func(c *worker.Config) {
		c.ID, c.Log = "one", log
		c.Timing.Sweep.LeaseTTL, c.Timing.Sweep.LeaseTerm = time.Minute, 300*time.Millisecond
	})
	back := func() bool {
		return slices.ContainsFunc(hook.AllEntries(), func(l *logrus.Entry) bool {
			return l.Message == "task store recovered" && l.Level == logrus.InfoLevel
		})
	}
	e.eventually(func() bool { return e.store.holds("one") == taskstore.SweepShards }, "the worker has every lease")
	released := e.store.called("Release")
	e.store.setUnavailable(true)
	e.eventually(func() bool { return e.store.called("Release") >= released+taskstore.SweepShards }, "every release of a lease fails")
	leased := e.store.called("Lease")
	e.eventually(func() bool { return e.store.called("Lease") >= leased+taskstore.SweepShards }, "the sweep goes on trying")
	for _, line := range hook.AllEntries() {
		if line.Message == "task store recovered" {
			t.Fatal("the store was logged as recovered while it was not")
		}
	}
	e.store.setUnavailable(false)
	e.eventually(back, "the store is back")
}
