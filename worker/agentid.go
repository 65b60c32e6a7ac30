package worker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// heldAgentID returns the agent id that a message of a host mentions, or ""
// if the host's identity does not hold it. The signature of the message was
// verified before.
func (b *believer) heldAgentID(header nats.Header, host procfleet.Host, id string) string {
	if b.keys().VerifyAgentID(header, host.String(), id) != nil {
		return ""
	}
	return id
}

// keepHeldAgentIDs removes agent ids that the host's identity does not hold from
// statuses: callers match answers to hosts by them.
func (b *believer) keepHeldAgentIDs(header nats.Header, host procfleet.Host, results []procfleet.Result) {
	for i := range results {
		if s := results[i].Status; s != nil && s.AgentID != "" {
			s.AgentID = b.heldAgentID(header, host, s.AgentID)
		}
	}
}

// idClaims publishes an event of the host, and writes a line to the log, when a
// host claims an agent id that it may not have. A claim is repeated with every
// announcement and reported once an hour by each worker.
type idClaims struct {
	bus      *bus.Bus
	believer *believer
	clock    *clock
	log      logrus.FieldLogger

	mu       sync.Mutex
	hour     time.Time // when reported was begun
	reported map[string]bool
}

// maxReportedClaims bounds the claims that are reported in one hour.
const maxReportedClaims = 10_000

// refused reports a claim of an id that the host's identity does not hold.
func (c *idClaims) refused(host procfleet.Host, instance, id string) {
	if !c.first(agentproto.EventAgentIDRefused, host, id) {
		return
	}
	c.log.WithFields(logrus.Fields{"host": host.String(), "agent_id": id}).
		Warn("agent id refused: missing in the identity")
	c.emit(host, instance, agentproto.EventAgentIDRefused, id, refusedAgentID(host, id))
}

func refusedAgentID(host procfleet.Host, id string) string {
	return fmt.Sprintf("agent id %q of host %s is refused, its identity does not hold it: "+
		"enroll the host again with --agent-id, or start its agent without", id, host)
}

// rivals reports that the live agents of several hosts claim one id.
func (c *idClaims) rivals(hosts []procfleet.Host, id string) {
	for _, host := range hosts {
		if !c.first(agentproto.EventAgentIDConflict, host, id) {
			continue
		}
		c.log.WithFields(logrus.Fields{"host": host.String(), "agent_id": id, "claimants": len(hosts)}).
			Error("agent id claimed by several hosts")
		c.emit(host, "", agentproto.EventAgentIDConflict, id, rivalsMessage(hosts, id))
	}
}

func rivalsMessage(hosts []procfleet.Host, id string) string {
	names := make([]string, len(hosts))
	for i, host := range hosts {
		names[i] = host.String()
	}
	return fmt.Sprintf("agent id %q is claimed by hosts %s: stop the agents of all but one, or name the host by its address",
		cut(id, maxWord), strings.Join(names, ", "))
}

// first reports whether a claim was not yet reported in this hour.
func (c *idClaims) first(kind string, host procfleet.Host, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.hour) >= time.Hour {
		c.hour, c.reported = now, make(map[string]bool)
	}
	claim := kind + " " + host.String() + " " + id
	if c.reported[claim] || len(c.reported) >= maxReportedClaims {
		return false
	}
	c.reported[claim] = true
	return true
}

// emit publishes an event about a host, signed as the host's own are. One that
// is lost is followed by that of another worker, or of the next hour.
func (c *idClaims) emit(host procfleet.Host, instance, kind, id, message string) {
	now := c.clock.now().UTC()
	event := &agentproto.Event{
		Header: agentproto.Header{Type: agentproto.TypeEvent, ID: uuid.NewString(), Sent: now},
		Host:   host.String(), Instance: instance, At: now, Kind: kind, Message: message,
		Details: map[string]any{"agent_id": cut(id, maxWord)},
	}
	data, err := agentproto.Encode(event)
	if err == nil {
		header := c.believer.signed(nil, host, &fleetkey.Message{Purpose: agentproto.TypeEvent, Body: data})
		err = c.bus.EmitHostEvent(bus.PublishedEvent{ID: event.ID, Host: host, Header: header, Body: data})
	}
	if err != nil {
		c.log.WithError(err).WithField("host", host.String()).Warn("event not published")
	}
}

// endNowhere ends the items that lead to no host: no live agent announces the
// agent id that they name, or several do.
func (dl *delivery) endNowhere(ctx context.Context) error {
	if len(dl.nowhere) == 0 {
		return nil
	}
	ids := make([]string, len(dl.nowhere))
	for n, i := range dl.nowhere {
		ids[n] = dl.begun.Chunk.Items[i].Target.AgentID
	}
	var claimants [][]procfleet.Host
	err := dl.timing.untilStored(ctx, func(ctx context.Context) (err error) {
		claimants, err = dl.store.Claimants(ctx, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up the claimants of %d agent ids: %w", len(ids), err)
	}
	for n, i := range dl.nowhere {
		if len(claimants[n]) < 2 {
			dl.end(i, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, unknownTarget(&dl.begun.Chunk.Items[i].Target))
			continue
		}
		dl.metrics.trouble(troubleAgentIDConflict)
		dl.claims.rivals(claimants[n], ids[n])
		dl.end(i, procfleet.CodeFailed, procfleet.ReasonRefused, rivalsMessage(claimants[n], ids[n]))
	}
	dl.nowhere = nil
	return nil
}
