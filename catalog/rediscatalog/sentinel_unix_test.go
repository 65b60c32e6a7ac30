//go:build unix

package rediscatalog_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// A connection that breaks during WAIT loses the answers of the scripts before it, too.
func TestRepeatAfterABrokenWaitAnswersWhatTheFirstAttemptChanged(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	redistest.StartIdleSentinel(t, "fleet", master, 1) // returns when the replica is there
	c := master.Client(t)
	var breaking sync.WaitGroup
	defer breaking.Wait()
	changes(t, open(t, redisconn.Options{URL: master.URL()}), func() *stores.Redis {
		replica.Freeze(t)
		breaking.Go(func() {
			defer replica.Thaw(t)
			if err := redistest.BreakWait(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
		return open(t, redisconn.Options{URL: master.URL(), WaitReplicas: 1, WaitTimeout: time.Minute, Patience: time.Minute})
	})
}

func TestFailOverBySentinelLosesNoTemplateThatWaited(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	for range 2 {
		redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	}
	url := redistest.StartSentinel(t, "fleet", master, 2).URL() + "?master_name=fleet"
	// After each time in which it was not scheduled, a Sentinel starts no fail-over for
	// half a minute.
	opt := redisconn.Options{URL: url, WaitReplicas: 2, WaitTimeout: 10 * time.Second, Patience: 5 * time.Minute}
	before := open(t, opt)
	opt.WaitReplicas = 1 // the promoted server has the other replica
	after := open(t, opt)
	goOn(t, before, open(t, opt), func() *stores.Redis {
		master.Stop(t)
		return after
	})
}
