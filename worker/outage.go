package worker

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// outageReminder is how often a store that stays away is mentioned.
const outageReminder = time.Minute

// outageCalm is how long no call may have failed before a store counts as
// back: one that is full answers reads and refuses writes.
const outageCalm = 3 * time.Second

// outage tells of a task store that is away, once for all who notice: when it
// goes, once a minute, and when it is back.
type outage struct {
	log logrus.FieldLogger

	mu          sync.Mutex
	since, said time.Time // zero while the store is there
	failed      time.Time // when the last call did
}

// away notes a call that failed because the store is away.
func (o *outage) away(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = now
	if o.since.IsZero() {
		o.since = now
	} else if now.Sub(o.said) < outageReminder {
		return
	}
	o.said = now
	o.log.WithError(err).WithField("away_for", now.Sub(o.since).Round(time.Second).String()).Warn("task store unavailable, retrying")
}

// back notes calls that succeeded, the first of which began at the given
// moment: what began before the store went, or between two failures, says
// nothing.
func (o *outage) back(began, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || began.Before(o.since) || now.Sub(o.failed) < outageCalm {
		return
	}
	o.log.WithField("away_for", o.failed.Sub(o.since).Round(time.Second).String()).Info("task store available again")
	o.since = time.Time{}
}
