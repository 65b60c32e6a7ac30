package simulate

import (
	"context"
	"runtime"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	presenceEvery = 30 * time.Second
	// burst is the number of announcements per tick. The resulting rate, 20,000 per second,
	// is low enough for a worker to store announcements without a queue.
	burst = 200
	tick  = 10 * time.Millisecond
	// probeEvery is the interval at which the first agent announces itself until a worker
	// replies.
	probeEvery = time.Second
)

// announce announces every agent, calls Ready, and then announces each agent every 30 s
// until ctx ends. If no worker replied at first, it waits for the first reply and then
// immediately announces all agents again.
func (f *Fleet) announce(ctx context.Context) {
	replied := f.probe()
	if !f.announceAll(ctx, tick, burst) {
		return
	}
	f.cfg.Ready()
	for !replied {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery):
		}
		if replied = f.probe(); replied && !f.announceAll(ctx, tick, burst) {
			return
		}
	}
	interval, n := f.even(presenceEvery)
	for f.announceAll(ctx, interval, n) {
	}
}

// even divides a round over all agents into equal batches of n agents per interval.
func (f *Fleet) even(round time.Duration) (interval time.Duration, n int) {
	const bursts = 300
	n = (f.cfg.Agents + bursts - 1) / bursts
	return round * time.Duration(n) / time.Duration(f.cfg.Agents), n
}

// announceAll announces every agent. A failed announcement is not retried: the next
// round replaces it.
func (f *Fleet) announceAll(ctx context.Context, interval time.Duration, n int) bool {
	return f.inTurns(ctx, interval, n, func(a *agent) {
		if data, err := f.presence(a); err == nil {
			_ = a.conn.PublishMsg(a.signed(agentproto.PresenceSubject(f.cfg.Cloud), agentproto.TypePresence, "", data)) // not retried
		}
	})
}

// inTurns calls do once for each agent, n agents per interval. It returns false if ctx
// ends before.
func (f *Fleet) inTurns(ctx context.Context, interval time.Duration, n int, do func(*agent)) bool {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for i := range f.agents {
		do(&f.agents[i])
		if (i+1)%n != 0 && i+1 < len(f.agents) {
			continue
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// probe announces the first agent and reports whether a worker replied.
func (f *Fleet) probe() bool {
	first := &f.agents[0]
	data, err := f.presence(first)
	if err != nil {
		return false
	}
	_, err = first.conn.RequestMsg(first.signed(agentproto.PresenceSubject(f.cfg.Cloud), agentproto.TypePresence, "", data), probeEvery)
	return err == nil
}

func (f *Fleet) presence(a *agent) ([]byte, error) {
	return agentproto.Encode(&agentproto.Presence{
		Header:      agentproto.Header{Type: agentproto.TypePresence, ID: a.instance, Sent: time.Now().UTC()},
		Host:        a.host,
		Instance:    a.instance,
		Incarnation: a.instance,
		Version:     "simulated",
		OS:          runtime.GOOS, Arch: runtime.GOARCH,
		StartedAt: f.started,
	})
}
