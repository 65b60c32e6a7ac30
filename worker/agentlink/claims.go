package agentlink

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// IDClaims logs and publishes events about hosts that claim an agent id without being
// entitled to it. Agents repeat their claims; each worker reports a claim once an hour.
type IDClaims struct {
	Link *Link
	Log  logrus.FieldLogger

	reported firsts
}

// maxReportedClaims bounds the claims reported in one hour.
const maxReportedClaims = 10_000

// Refused reports a claim of an agent id that is not part of the host's identity. It
// returns the message for the agent.
func (c *IDClaims) Refused(host procfleet.Host, instance, id string) string {
	message := fmt.Sprintf("agent id %q of host %s is refused, it is not part of the host's identity: "+
		"enroll the host again with --agent-id, or start its agent without", id, host)
	if c.first(agentproto.EventAgentIDRefused, host, id) {
		c.Log.WithFields(logrus.Fields{"host": host.String(), "agent_id": id}).
			Warn("agent id refused: missing in the identity")
		c.emit(host, instance, agentproto.EventAgentIDRefused, id, message)
	}
	return message
}

// Conflict reports an agent id claimed by live agents of several hosts.
// It returns the message for callers.
func (c *IDClaims) Conflict(hosts []procfleet.Host, id string) string {
	names := make([]string, len(hosts))
	for i, host := range hosts {
		names[i] = host.String()
	}
	message := fmt.Sprintf("agent id %q is claimed by hosts %s: stop the agents of all but one, or name the host by its address",
		Cut(id, MaxName), strings.Join(names, ", "))
	for _, host := range hosts {
		if !c.first(agentproto.EventAgentIDConflict, host, id) {
			continue
		}
		c.Log.WithFields(logrus.Fields{"host": host.String(), "agent_id": id, "claimants": len(hosts)}).
			Error("agent id claimed by several hosts")
		c.emit(host, "", agentproto.EventAgentIDConflict, id, message)
	}
	return message
}

func (c *IDClaims) first(kind string, host procfleet.Host, id string) bool {
	return c.reported.add(kind+" "+host.String()+" "+id, time.Hour, maxReportedClaims)
}

// emit publishes an event about a host, signed like the host's own events. A lost event
// is repeated by another worker, or by this worker in the next hour.
func (c *IDClaims) emit(host procfleet.Host, instance, kind, id, message string) {
	now := c.Link.Clock.Now().UTC()
	event := &agentproto.Event{
		Header: agentproto.Header{Type: agentproto.TypeEvent, ID: uuid.NewString(), Sent: now},
		Host:   host.String(), Instance: instance, At: now, Kind: kind, Message: message,
		Details: map[string]any{"agent_id": Cut(id, MaxName)},
	}
	data, err := agentproto.Encode(event)
	if err == nil {
		header := c.Link.Auth.Sign(nil, host, &fleetkey.Message{Purpose: agentproto.TypeEvent, Body: data})
		err = c.Link.Bus.EmitHostEvent(bus.PublishedEvent{ID: event.ID, Host: host, Header: header, Body: data})
	}
	if err != nil {
		c.Log.WithError(err).WithField("host", host.String()).Warn("event not published")
	}
}
