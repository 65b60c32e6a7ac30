package simulate

import (
	"context"
	"runtime"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	presenceEvery = 30 * time.Second
	// burst is the number of announcements per tick: 20,000 per second, which a worker
	// stores without a queue.
	burst = 200
	tick  = 10 * time.Millisecond
	// probeEvery is the interval of announcements until a worker replies.
	probeEvery = time.Second
)

// announce announces every agent, calls Ready, and announces each agent every 30 s
// until ctx ends. It announces all agents at once when the first worker appears.
func (f *Fleet) announce(ctx context.Context) {
	heard := f.probe()
	if !f.announceAll(ctx, tick, burst) {
		return
	}
	f.cfg.Ready()
	for !heard {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery):
		}
		if heard = f.probe(); heard && !f.announceAll(ctx, tick, burst) {
			return
		}
	}
	interval, n := f.even(presenceEvery)
	for f.announceAll(ctx, interval, n) {
	}
}

// even divides a round into equal batches: n agents per interval.
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
			_ = a.conn.PublishMsg(a.signed(agentproto.PresenceSubject(f.cfg.Cloud), agentproto.TypePresence, "", data)) // see above
		}
	})
}

// inTurns calls do for n agents per interval until all agents are done, and reports
// whether ctx is still active.
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
		Header:   agentproto.Header{Type: agentproto.TypePresence, ID: a.instance, Sent: time.Now().UTC()},
		Host:     a.host,
		Instance: a.instance,
		Version:  "simulated",
		OS:       runtime.GOOS, Arch: runtime.GOARCH,
		StartedAt: f.started,
		Types:     []string{agentproto.TypeCommand, agentproto.TypeResend},
	})
}
