package simulate

import (
	"context"
	"runtime"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	presenceEvery = 30 * time.Second
	// burst announcements are sent at a time, a tick apart: 20,000 a second,
	// which a worker stores without a queue.
	burst = 200
	tick  = 10 * time.Millisecond
	// probeEvery is how often a fleet that no worker has heard yet tries.
	probeEvery = time.Second
)

// announce announces every agent, calls Ready, and goes on announcing each
// agent every 30 s until ctx ends. When the first worker appears only later,
// all are announced to it at once rather than within the next 30 s.
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

// even says how many agents have to have their turn how often, so that all had
// it after a round and workers see an even stream.
func (f *Fleet) even(round time.Duration) (interval time.Duration, n int) {
	const bursts = 300
	n = (f.cfg.Agents + bursts - 1) / bursts
	return round * time.Duration(n) / time.Duration(f.cfg.Agents), n
}

// announceAll announces every agent. An announcement that cannot be sent is
// not missed: the next one will be.
func (f *Fleet) announceAll(ctx context.Context, interval time.Duration, n int) bool {
	return f.inTurns(ctx, interval, n, func(a *agent) {
		if data, err := f.presence(a); err == nil {
			_ = a.conn.PublishMsg(a.signed(agentproto.PresenceSubject(f.cfg.Cloud), agentproto.TypePresence, "", data)) // see above
		}
	})
}

// inTurns calls do with n agents every interval until all had their turn, and
// reports whether ctx still goes on.
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

// probe announces the first agent and reports whether a worker answered.
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
