package check

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	// cancelEvery is the number of submissions per submission whose task is canceled.
	cancelEvery = 9
	// cancelWithin is the maximum time from the acceptance of a task to its cancel.
	cancelWithin = time.Second
)

// cancel cancels a task after a moment, with a random mode, or one of its hosts only. working limits
// the repeats.
func (l *Load) cancel(working context.Context, c *client.Client, id procfleet.TaskID, host procfleet.Host) {
	_ = rest(working, rand.N(cancelWithin))
	mode := procfleet.CancelDrain
	if rand.IntN(2) == 0 {
		mode = procfleet.CancelInterrupt
	}
	cancel := client.TaskCancel{Mode: mode}
	if rand.IntN(2) == 0 {
		cancel.Hosts = []procfleet.Host{host}
	}
	if _, err := c.CancelTask(working, id, cancel); err != nil {
		l.cfg.Log("cancel of task %s: %v", id, err)
	}
}

// canceled checks that no command of a canceled item ran.
func (j *judge) canceled(marks []Mark) {
	for _, m := range marks {
		position, ok := m.fence()
		if !ok {
			continue
		}
		r := j.final(m.task(), position.item)
		if r != nil && r.State == procfleet.StateCancelled && r.Host == m.Host {
			j.brokenItem(RuleCanceled, m.task(), position.item, m.Host, "%s of %s ran %s, but the item is %s: %q",
				m.Verb, m.Token, m.At.Format(clockLayout), r.State, r.Message)
		}
	}
}

// final returns the final result of an item, or nil if none was read.
func (j *judge) final(task procfleet.TaskID, item int) *client.Result {
	last := j.h.last(task)
	if last == nil {
		return nil
	}
	for i := range last.Results {
		if last.Results[i].Item == item {
			return &last.Results[i]
		}
	}
	return nil
}
