package worker

import (
	"errors"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

func TestAnOutageIsToldWhenItBeginsOnceAMinuteAndWhenItEnds(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	o, begin := &outage{log: log}, time.Now()
	for range 2 { // a second outage is told like the first
		hook.Reset()
		for second := range 150 {
			for range 16 { // every shard notices
				o.away(begin.Add(time.Duration(second)*time.Second), errors.New("connection refused"))
			}
		}
		end := begin.Add(150*time.Second + outageCalm)
		o.back(begin.Add(-time.Second), end) // began before it went
		o.back(end, end)
		o.back(end, end)
		if n := len(hook.AllEntries()); n != 4 {
			t.Errorf("%d lines, want 3 while it lasts and 1 at its end: %v", n, hook.AllEntries())
		}
		begin = end.Add(time.Second)
	}
}

// A store that is full answers some calls and refuses others for as long as
// that lasts.
func TestAStoreThatTakesOnlySomeCallsDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	o, begin := &outage{log: log}, time.Now()
	for second := range 50 {
		now := begin.Add(time.Duration(second) * time.Second)
		o.away(now, errors.New("OOM command not allowed"))
		o.back(now, now.Add(time.Second/2))
	}
	if n := len(hook.AllEntries()); n != 1 {
		t.Errorf("%d lines, want 1: %v", n, hook.AllEntries())
	}
}
