package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// otherAgentTimeout bounds the wait for an answer on the own subject.
const otherAgentTimeout = 5 * time.Second

// watchOthers tells when another agent takes commands for this host, until ctx
// ends. Each takes a part of them then, so workers send no changes to either.
func (s *session) watchOthers(ctx context.Context) {
	other := "" // the one that was told
	for {
		timer := time.NewTimer(jittered(s.cfg.PresenceInterval))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		instance := s.whoAnswers(ctx)
		if instance == "" || instance == s.self.instance || instance == other {
			continue // who is silent this time may answer the next time
		}
		other = instance
		s.cfg.Log.WithField("instance", instance).Error("another agent takes commands for this host: stop one of the two")
		s.events.tell(agentproto.Event{
			Kind:    agentproto.EventTwoAgents,
			Message: fmt.Sprintf("another agent, instance %s, takes commands for host %s: stop one of the two", instance, s.self.host),
			Details: map[string]any{"instance": instance},
		})
	}
}

// whoAnswers asks on the own subject for the results of nothing, which any one
// of those that listen there answers, and returns its instance; "" = nobody.
func (s *session) whoAnswers(ctx context.Context) string {
	if !s.cfg.Conn.IsConnected() {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, otherAgentTimeout)
	defer cancel()
	question := agentproto.Resend{Header: newHeader(agentproto.TypeResend), Lane: "s", Host: s.self.host}
	data, err := agentproto.Encode(&question)
	if err != nil {
		s.cfg.Log.WithError(err).Error("question for other agents cannot be encoded")
		return ""
	}
	msg, err := s.cfg.Conn.RequestMsgWithContext(ctx, s.self.signed(s.cfg.subject(), agentproto.TypeResend, "", data))
	if err != nil {
		return "" // busy, or not connected any more
	}
	if s.self.believe(msg, agentproto.TypeResendReply, question.ID) != nil {
		return ""
	}
	var reply agentproto.ResendReply
	if err := agentproto.Decode(msg.Data, agentproto.TypeResendReply, &reply); err != nil {
		s.cfg.Log.WithError(err).Debug("answer on the own subject cannot be read")
		return ""
	}
	return reply.Instance
}
