package main

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/taskstore"
)

func TestAServerThatIsWaitedForIsMentionedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		tries, told := 0, 0
		wait := func(server string, why error) {
			if server == "Redis" && why != nil {
				told++
			}
		}
		err := retryUnavailable(t.Context(), log, "Redis", wait, func() error {
			if tries++; tries <= 150 { // one a second
				return fmt.Errorf("%w: connection refused", taskstore.ErrUnavailable)
			}
			return nil
		})
		if n := len(hook.AllEntries()); err != nil || n != 3 || told != 150 {
			t.Errorf("%v; %d lines in 150 s, want 3: %v; readiness was told %d times", err, n, hook.AllEntries(), told)
		}
	})
}
