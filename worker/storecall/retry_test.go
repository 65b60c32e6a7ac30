package storecall

import (
	"errors"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

func TestAnOutageIsLoggedWhenItBeginsOnceAMinuteAndWhenItEnds(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	o, begin := &Outage{Log: log}, time.Now()
	for range 2 { // a second outage is logged like the first
		hook.Reset()
		for second := range 150 {
			for range 16 { // every shard notices
				o.Failed(begin.Add(time.Duration(second)*time.Second), errors.New("connection refused"))
			}
		}
		end := begin.Add(150*time.Second + outageQuiet)
		o.Succeeded(begin.Add(-time.Second), end) // began before the outage
		o.Succeeded(end, end)
		o.Succeeded(end, end)
		if n := len(hook.AllEntries()); n != 4 {
			t.Errorf("%d lines, want 3 while it lasts and 1 at its end: %v", n, hook.AllEntries())
		}
		begin = end.Add(time.Second)
	}
}

// While a store is full, some calls succeed and others fail.
func TestAStoreThatTakesOnlySomeCallsDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	o, begin := &Outage{Log: log}, time.Now()
	for second := range 50 {
		now := begin.Add(time.Duration(second) * time.Second)
		o.Failed(now, errors.New("OOM command not allowed"))
		o.Succeeded(now, now.Add(time.Second/2))
	}
	if n := len(hook.AllEntries()); n != 1 {
		t.Errorf("%d lines, want 1: %v", n, hook.AllEntries())
	}
}
