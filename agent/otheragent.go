package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
)

// Timeouts of the requests on the subject of this host that detect another agent.
const (
	otherAgentTimeout = 5 * time.Second // for the reply, while this agent accepts commands
	// probeTimeout is the timeout for the reply before this agent accepts commands, and
	// about the time between two requests.
	probeTimeout = 2 * time.Second
	// silenceLimit is the maximum wait of a starting agent for a subscriber that does not
	// reply: an agent stopped by a signal, or after a power loss the connection of this
	// host's previous agent, which the broker has not closed yet.
	silenceLimit = 6 * time.Second
)

// subscribe subscribes to the commands for this host once no other agent is subscribed.
// While another agent replies, this agent only announces the conflict, so that workers send
// no changes to the host: two agents never accept commands at the same time, not even with
// copies of one journal. If ctx ends first it returns nil without an error.
func (s *session) subscribe(ctx context.Context) (*nats.Subscription, error) {
	var reported agentproto.AgentProcess
	wait := time.Now().Add(silenceLimit)
	for {
		other, none := s.otherAgent(ctx, probeTimeout)
		replied := reported != agentproto.AgentProcess{}
		switch {
		case other != nil:
			wait = time.Now().Add(s.cfg.PresenceInterval / 2) // the other agent may be disconnected for a moment
			s.announcer.announceOther(ctx, other)
			if *other != reported {
				reported = *other
				s.reportOther(other, "; this agent waits until the other one has stopped")
				withTimeout(ctx, flushTimeout, s.events.flush)
			}
		case none && !replied, time.Now().After(wait):
			sub, err := subscribe(s.cfg.Conn, s.cfg.subject())
			s.announcer.subscribed.Store(err == nil)
			return sub, err
		}
		if !sleep(ctx, jittered(min(probeTimeout, s.cfg.PresenceInterval/10))) {
			return nil, nil //nolint:nilnil // the agent stops
		}
	}
}

func (s *session) subscribeOnceConnected(ctx context.Context) (*nats.Subscription, error) {
	changes := s.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer s.cfg.Conn.RemoveStatusListener(changes)
	for !s.cfg.Conn.IsConnected() {
		if s.cfg.Conn.IsClosed() {
			return nil, fmt.Errorf("wait for the connection to NATS: %w", nats.ErrConnectionClosed)
		}
		select {
		case <-ctx.Done():
			return nil, nil //nolint:nilnil // the agent stops
		case <-changes:
		}
	}
	sub, err := s.subscribe(ctx)
	if sub != nil {
		s.announcer.sync(ctx)
	}
	return sub, err
}

// watchOthers reports other agents that accept commands for this host, until ctx ends.
// [session.subscribe] does not detect an agent that starts at the same moment or in a
// partitioned network. Each agent receives a part of the commands, so workers send no
// changes to the host.
func (s *session) watchOthers(ctx context.Context) {
	var reported agentproto.AgentProcess
	for sleep(ctx, jittered(s.cfg.PresenceInterval)) {
		other, _ := s.otherAgent(ctx, otherAgentTimeout)
		if other == nil || *other == reported {
			continue // another agent may get the next request
		}
		reported = *other
		s.announcer.announceOther(ctx, other)
		s.reportOther(other, "")
	}
}

// reportOther logs and emits that another agent accepts commands for this host. It appends
// then to the message.
func (s *session) reportOther(other *agentproto.AgentProcess, then string) {
	message := fmt.Sprintf("another agent, instance %s, accepts commands for host %s: stop one of the two", other.Instance, s.host)
	if other.Instance == s.instance {
		message = fmt.Sprintf("a copy of this agent, with the same data folder and identity, accepts commands for host %s: stop one of the two, "+
			"and give the copy an identity and an empty data folder of its own", s.host)
	}
	message += then
	details := map[string]any{"instance": other.Instance, "incarnation": other.Incarnation}
	s.log.WithFields(details).Error(message)
	s.events.emit(agentproto.Event{Kind: agentproto.EventTwoAgents, Message: message, Details: details})
}

// otherAgent sends a resend request without items on the subject of this host and returns
// the agent that replied, if it is another one. It returns nil if no agent or this agent
// replied within limit. none is true if the broker has no subscriber.
func (s *session) otherAgent(ctx context.Context, limit time.Duration) (other *agentproto.AgentProcess, none bool) {
	if !s.cfg.Conn.IsConnected() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request := agentproto.Resend{Header: newHeader(agentproto.TypeResend), Lane: "s", Host: s.host}
	var reply agentproto.ResendReply
	if _, err := s.request(ctx, s.cfg.subject(), &request, agentproto.TypeResendReply, &reply); err != nil {
		return nil, errors.Is(err, nats.ErrNoResponders) // otherwise the subscriber is busy, or the connection is lost
	}
	other = &agentproto.AgentProcess{Instance: reply.Instance, Incarnation: reply.Incarnation}
	if reply.Instance == "" || *other == (agentproto.AgentProcess{Instance: s.instance, Incarnation: s.incarnation}) {
		return nil, false
	}
	return other, false
}
