package deliver

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// idleAfter is the time without replies after which another chunk may be processed.
const idleAfter = 5 * time.Millisecond

// gather handles replies and retries due hosts until all hosts are settled.
func (dl *delivery) gather(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var set time.Time // expiry of the timer
	for dl.open > 0 {
		if !dl.wake.Equal(set) {
			set = dl.wake
			timer.Reset(max(0, set.Sub(dl.cfg.Clock.Now())))
		}
		select {
		case r := <-dl.batch.Replies:
			dl.handleReply(r)
		case <-timer.C:
			if err := dl.onTimer(ctx); err != nil {
				return err
			}
			set = time.Time{}
		case <-dl.held:
			if err := dl.renew(ctx); err != nil {
				return err
			}
		case <-dl.slot.stopping():
			return errRequeue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// onTimer parks the chunk if no host has replied for Timing.ParkAfter, stores pending
// results, and retries the hosts that are due or gives them up.
func (dl *delivery) onTimer(ctx context.Context) error {
	now := dl.cfg.Clock.Now()
	if !now.Before(dl.begun.Deadline) {
		return errOverdue
	}
	if !now.Before(dl.lastReply.Add(idleAfter)) {
		dl.slot.releaseBusy()
	}
	due := dl.due(now)
	parks := !dl.slot.parked && !now.Before(dl.lastReply.Add(dl.cfg.Timing.ParkAfter))
	if len(due) > 0 || parks || !dl.storeBy.IsZero() && !now.Before(dl.storeBy) {
		if err := dl.flush(ctx, false); err != nil {
			return err
		}
	}
	if parks {
		if !dl.slot.park() {
			return errParkedFull
		}
		dl.commands.freeSpecs(dl.hosts)
	}
	if err := dl.refreshPresences(ctx, due); err != nil {
		return err
	}
	if len(due) > 0 {
		if err := dl.renewStale(ctx); err != nil {
			return err
		}
	}
	dl.handleWaiting()
	woken := now
	now = dl.cfg.Clock.Now()
	for _, h := range due {
		switch {
		case !h.due(now): // a reply handled above has postponed the host
		case h.exhausted(now, &dl.cfg.Timing) && woken.Sub(h.again) > dl.cfg.Timing.AcceptMargin:
			// This worker was suspended or is slow: a reply may still be in transit.
			h.again = now.Add(dl.cfg.Timing.AcceptMargin)
		default:
			dl.retryHost(h, now)
		}
	}
	dl.schedule()
	return nil
}

// handleWaiting handles the replies that are queued already. After a slow store call or
// on a busy machine, their hosts must not count as hosts without reply.
func (dl *delivery) handleWaiting() {
	for dl.open > 0 {
		select {
		case r := <-dl.batch.Replies:
			dl.handleReply(r)
		default:
			return
		}
	}
}

func (dl *delivery) due(now time.Time) (due []*hostRequest) {
	for _, h := range dl.hosts {
		if h != nil && h.due(now) {
			due = append(due, h)
		}
	}
	return due
}

func (dl *delivery) retryHost(h *hostRequest, now time.Time) {
	disconnected := !dl.cfg.Conn.IsConnected()
	switch {
	case h.settled():
		return
	case h.noReplies > 0 && (disconnected || dl.reconnected().After(h.sentAt)):
		// The reply may be missing because this worker was disconnected.
		h.noReplies, h.unreplied = 0, true
	case h.exhausted(now, &dl.cfg.Timing):
		dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleNoReply)
		dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.noReplyMessage())
		return
	case h.noReplies > 0:
		h.unreplied = true
	}
	if disconnected {
		h.again = now.Add(storecall.Jitter(dl.cfg.Timing.NoResponderAgain))
		return
	}
	dl.request(h, now)
}

// schedule sets wake to the earliest of all pending timers.
func (dl *delivery) schedule() {
	dl.wake = dl.begun.Deadline
	if !dl.slot.parked {
		dl.wakeBy(dl.lastReply.Add(dl.cfg.Timing.ParkAfter))
	}
	if !dl.storeBy.IsZero() {
		dl.wakeBy(dl.storeBy)
	}
	if dl.slot.busy {
		dl.wakeBy(dl.lastReply.Add(idleAfter))
	}
	for _, h := range dl.hosts {
		if h != nil {
			dl.wakeBy(h.again)
		}
	}
}

func (dl *delivery) wakeBy(t time.Time) {
	if dl.wake.IsZero() || t.Before(dl.wake) {
		dl.wake = t
	}
}
