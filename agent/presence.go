package agent

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/label"
)

// announceTimeout bounds the wait for the reply to an announcement.
const announceTimeout = 3 * time.Second

// announcer sends the presence of this agent to the servers and reads their time
// from the replies.
type announcer struct {
	*requester

	conn      *nats.Conn
	cfg       *Config
	engine    Engine
	startedAt time.Time
	labels    map[string]string // labels of the host and its fact kernel
	load      hostLoad
	// subscribed is true once the agent has subscribed to commands, ready once NATS has
	// confirmed the subscription.
	subscribed, ready atomic.Bool
	refusedID         string // servers' reason for refusing the agent id; "" = accepted
}

// announceOther announces a conflict between this agent and another live agent of the host.
// It returns after the reply or announceTimeout.
func (a *announcer) announceOther(ctx context.Context, other *agentproto.AgentProcess) {
	presence := a.presence()
	presence.Other = other
	a.announce(ctx, presence)
}

// sync announces once if the agent is connected, and reads the servers' time from the
// reply. It reports whether a worker replied within announceTimeout.
func (a *announcer) sync(ctx context.Context) bool {
	return a.conn.IsConnected() && a.announce(ctx, a.presence())
}

// run announces on every connection and at intervals until ctx ends, and calls connected on
// every connection. Without a reply of a worker it announces more often: servers send no
// commands to a host that has not been announced.
func (a *announcer) run(ctx context.Context, connected func()) {
	changes := a.conn.StatusChanged(nats.CONNECTED)
	defer a.conn.RemoveStatusListener(changes)
	const firstPause = 500 * time.Millisecond
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open { // the connection is closed for good
				return
			}
			connected()
			pause = firstPause
		case <-time.After(jittered(min(pause, a.cfg.PresenceInterval))):
		}
		switch {
		case !a.conn.IsConnected(): // the next connection wakes this loop
			pause = a.cfg.PresenceInterval
		case a.announce(ctx, a.presence()):
			pause = a.cfg.PresenceInterval
		default:
			pause = min(2*pause, a.cfg.PresenceInterval)
		}
	}
}

// jittered returns d ± 10 %.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

func (a *announcer) leave(ctx context.Context) {
	if a.conn.IsConnected() {
		presence := a.presence()
		presence.Leaving = true
		a.announce(ctx, presence)
	}
}

// announce sends one announcement and reports whether a worker replied.
func (a *announcer) announce(ctx context.Context, presence *agentproto.Presence) bool {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	if a.subscribed.Load() && !a.ready.Load() {
		if err := a.conn.FlushWithContext(ctx); err != nil {
			return false
		}
		a.ready.Store(true)
		a.log.WithField("instance", a.instance).Info("accepting commands")
	}
	reply := a.send(ctx, presence)
	if reply != nil && reply.Again { // the local clock was wrong; the reply has set the servers' time
		again := *presence
		again.Header = a.header()
		reply = a.send(ctx, &again)
	}
	return reply != nil && !reply.Again
}

// send sends one announcement and reads the servers' time from the reply. It returns nil
// without a reply.
func (a *announcer) send(ctx context.Context, presence *agentproto.Presence) *agentproto.PresenceReply {
	var reply agentproto.PresenceReply
	took, err := a.request(ctx, agentproto.PresenceSubject(a.cloud), presence, agentproto.TypePresenceReply, &reply)
	if err != nil {
		if !errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil {
			a.log.WithError(err).Debug("announcement not acknowledged")
		}
		return nil
	}
	a.clock.observe(took, reply.ServerTime)
	if reply.AgentIDRefused != a.refusedID {
		if a.refusedID = reply.AgentIDRefused; a.refusedID != "" {
			a.log.Error(a.refusedID)
		}
	}
	return &reply
}

func (a *announcer) presence() *agentproto.Presence {
	load := a.load.read(a.log)
	return &agentproto.Presence{
		Header: a.header(),
		Host:   a.host, AgentID: a.agentID, Instance: a.instance, Incarnation: a.incarnation, Version: a.cfg.Version,
		OS: runtime.GOOS, Arch: runtime.GOARCH, Labels: a.labels, StartedAt: a.startedAt,
		Supervised: a.engine.Supervised(), CPU: load.CPU, Memory: load.Memory,
	}
}

// hostLabels adds the fact kernel to the labels of the host. The other facts are fields of an
// announcement.
func hostLabels(labels map[string]string) map[string]string {
	all := maps.Clone(labels)
	if kernel := kernelRelease(); label.Check("kernel", kernel) == nil && kernel != "" {
		if all == nil {
			all = make(map[string]string, 1)
		}
		all["kernel"] = kernel
	}
	return all
}

// header returns the header of a new announcement, with the servers' time.
func (a *announcer) header() agentproto.Header {
	header := newHeader(agentproto.TypePresence)
	header.Sent = a.clock.now().UTC()
	return header
}
