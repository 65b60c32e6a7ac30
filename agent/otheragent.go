package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

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
		instance, incarnation := s.whoAnswers(ctx)
		own := instance == s.self.instance && (incarnation == "" || incarnation == s.self.incarnation)
		if instance == "" || own || instance+" "+incarnation == other {
			continue // who is silent this time may answer the next time
		}
		other = instance + " " + incarnation
		message := fmt.Sprintf("another agent, instance %s, takes commands for host %s: stop one of the two", instance, s.self.host)
		if instance == s.self.instance {
			message = fmt.Sprintf("a copy of this agent, with the same data folder and identity, takes commands for host %s: stop one of the two, "+
				"and give the copy an identity and an empty data folder of its own", s.self.host)
		}
		s.cfg.Log.WithFields(logrus.Fields{"instance": instance, "incarnation": incarnation}).Error(message)
		s.events.tell(agentproto.Event{
			Kind: agentproto.EventTwoAgents, Message: message,
			Details: map[string]any{"instance": instance, "incarnation": incarnation},
		})
	}
}

// whoAnswers asks on the own subject for the results of nothing, which any one
// of those that listen there answers, and returns its instance and its
// incarnation; "" = no reply.
func (s *session) whoAnswers(ctx context.Context) (instance, incarnation string) {
	if !s.cfg.Conn.IsConnected() {
		return "", ""
	}
	ctx, cancel := context.WithTimeout(ctx, otherAgentTimeout)
	defer cancel()
	question := agentproto.Resend{Header: newHeader(agentproto.TypeResend), Lane: "s", Host: s.self.host}
	data, err := agentproto.Encode(&question)
	if err != nil {
		s.cfg.Log.WithError(err).Error("question for other agents cannot be encoded")
		return "", ""
	}
	msg, err := s.cfg.Conn.RequestMsgWithContext(ctx, s.self.signed(s.cfg.subject(), agentproto.TypeResend, "", data))
	if err != nil {
		return "", "" // busy, or not connected any more
	}
	if s.self.believe(msg, agentproto.TypeResendReply, question.ID) != nil {
		return "", ""
	}
	var reply agentproto.ResendReply
	if err := agentproto.Decode(msg.Data, agentproto.TypeResendReply, &reply); err != nil {
		s.cfg.Log.WithError(err).Debug("answer on the own subject cannot be read")
		return "", ""
	}
	return reply.Instance, reply.Incarnation
}
