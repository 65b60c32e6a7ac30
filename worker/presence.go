package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// presence stores what agents announce, in batches, and tells them the time.
// An announcement that is lost is made again by its agent in 30 s.
type presence struct {
	conn     *nats.Conn
	store    Store
	believer *believer
	claims   *idClaims
	clock    *clock
	timing   *Timing
	metrics  *metrics
	log      logrus.FieldLogger

	failing bool // the last batch was not stored
}

// inbox is where announcements come in: some 300 bytes each.
func (p *presence) inbox() *inbox {
	return &inbox{
		conn: p.conn, subject: agentproto.PresenceAll, name: "presence", log: p.log,
		room: 8192, roomBytes: 16 << 20, batch: 500, batchBytes: 4 << 20, linger: p.timing.PresenceLinger,
		take: p.take, overflow: func(*nats.Msg) { p.metrics.announcements(1, announcedOverflowed) }, metrics: p.metrics,
	}
}

// heard is an announcement and where to answer it.
type heard struct {
	announcement taskstore.Announcement
	id           string // of the message
	reply        string
	refusedID    string // why the agent id was refused; "" if it was not
	// other is the other live agent of the host that the announcement names; nil
	// if it names none.
	other *agentproto.AgentProcess
}

// announcements are those to store: with another live agent both were heard of
// in turn, which is what stores take for a conflict.
func (h *heard) announcements() []taskstore.Announcement {
	own := h.announcement
	if h.other == nil {
		return []taskstore.Announcement{own}
	}
	other := own
	other.Instance, other.Incarnation = h.other.Instance, h.other.Incarnation
	return []taskstore.Announcement{own, other, own}
}

// take stores what the messages announce.
func (p *presence) take(ctx context.Context, msgs []*nats.Msg) {
	var batch []heard
	for _, msg := range msgs {
		batch = p.add(batch, msg)
	}
	p.announce(ctx, batch)
}

func (p *presence) add(batch []heard, msg *nats.Msg) []heard {
	message, a, err := decodePresence(msg.Data, msg.Subject)
	if err != nil {
		p.log.WithError(err).WithField("subject", msg.Subject).Warn("announcement dropped")
		p.metrics.announcements(1, announcedBad)
		return batch
	}
	if p.believer.believe(msg.Header, a.Host, &fleetkey.Message{Purpose: agentproto.TypePresence, Body: msg.Data}) != nil {
		p.metrics.announcements(1, announcedBad)
		return batch
	}
	h := heard{announcement: a, id: message.ID, reply: msg.Reply, other: message.Other}
	if !p.fresh(message.Sent) {
		p.metrics.announcements(1, announcedStale)
		p.answer(&h, true)
		return batch
	}
	if p.believer.heldAgentID(msg.Header, a.Host, a.AgentID) != a.AgentID {
		// The host itself is who it says, and stays reachable by its address.
		p.metrics.refusedID.Add(context.Background(), 1)
		p.claims.refused(a.Host, a.Instance, a.AgentID)
		h.announcement.AgentID, h.refusedID = "", refusedAgentID(a.Host, a.AgentID)
	}
	return append(batch, h)
}

// presenceWindow is by how much the time at which an announcement says that it
// was sent may differ from the store's. A recorded one that is sent again
// shows a host as alive that is not, for at most as long.
const presenceWindow = 30 * time.Second

// fresh reports whether an announcement is of now. Where nothing is signed
// anybody can write any time into one, so there it is not looked at.
func (p *presence) fresh(sent time.Time) bool {
	return !p.believer.signs() || p.clock.now().Sub(sent).Abs() <= presenceWindow
}

func decodePresence(data []byte, subject string) (message agentproto.Presence, a taskstore.Announcement, err error) {
	if err := agentproto.Decode(data, agentproto.TypePresence, &message); err != nil {
		return message, taskstore.Announcement{}, err
	}
	host, err := hostFromWire(message.Host, subject)
	if err != nil {
		return message, taskstore.Announcement{}, err
	}
	if message.Instance == "" || len(message.Instance) > maxWord || len(message.Incarnation) > maxWord || len(message.AgentID) > maxWord {
		return message, taskstore.Announcement{}, fmt.Errorf("announcement of host %s: instance, incarnation and agent id must be at most %d bytes, and there must be an instance", host, maxWord)
	}
	if o := message.Other; o != nil && (o.Instance == "" || len(o.Instance) > maxWord || len(o.Incarnation) > maxWord || message.Leaving) {
		return message, taskstore.Announcement{}, fmt.Errorf("announcement of host %s: other must name an instance of at most %d bytes, and the agent must not be leaving", host, maxWord)
	}
	return message, taskstore.Announcement{
		Host: host, AgentID: message.AgentID, Instance: message.Instance, Incarnation: message.Incarnation,
		Version: cut(message.Version, maxWord), OS: cut(message.OS, maxWord), Arch: cut(message.Arch, maxWord),
		StartedAt: message.StartedAt, Supervised: max(0, message.Supervised), Leaving: message.Leaving,
		CPU: percent(message.CPU), Memory: percent(message.Memory),
	}, nil
}

// percent bounds what an agent says is in use of something.
func percent(part float64) float64 { return min(max(part, 0), 100) }

func (p *presence) announce(ctx context.Context, batch []heard) {
	if len(batch) == 0 {
		return
	}
	announcements := make([]taskstore.Announcement, 0, len(batch))
	for i := range batch {
		announcements = append(announcements, batch[i].announcements()...)
	}
	callCtx, cancel := context.WithTimeoutCause(ctx, p.timing.StoreCall, errStoreSlow)
	defer cancel()
	err := p.store.Announce(callCtx, announcements)
	if err != nil && !p.failing { // once in a row
		p.log.WithError(err).WithField("announcements", len(batch)).Warn("announcements not stored, agents will repeat them")
	}
	if p.failing = err != nil; p.failing {
		p.metrics.announcements(len(batch), announcedLost)
		return
	}
	p.metrics.announcements(len(batch), announcedStored)
	for i := range batch {
		p.answer(&batch[i], false)
	}
}

// answer tells the agent the store's time at this very moment, and whether it
// is to announce itself again by it.
func (p *presence) answer(h *heard, again bool) {
	if !agentproto.ToAgent(h.reply) {
		return
	}
	now := p.clock.now().UTC()
	data, err := agentproto.Encode(&agentproto.PresenceReply{
		Header:     agentproto.Header{Type: agentproto.TypePresenceReply, ID: h.reply, Sent: now},
		ServerTime: now, Again: again, AgentIDRefused: h.refusedID,
	})
	if err == nil {
		message := fleetkey.Message{Purpose: agentproto.TypePresenceReply, Answers: h.id, Body: data}
		err = p.conn.PublishMsg(&nats.Msg{Subject: h.reply, Data: data, Header: p.believer.signed(nil, h.announcement.Host, &message)})
	}
	if err != nil {
		p.log.WithError(err).WithField("host", h.announcement.Host.String()).Warn("announcement reply not sent")
	}
}
