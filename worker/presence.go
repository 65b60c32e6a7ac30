package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
)

// presence stores what agents announce, in batches, and tells them the time.
// An announcement that is lost is made again by its agent in 30 s.
type presence struct {
	conn    *nats.Conn
	store   Store
	clock   *clock
	timing  *Timing
	metrics *metrics
	log     logrus.FieldLogger

	sub      *nats.Subscription
	arriving chan *nats.Msg
	failing  bool // the last batch was not stored
}

const (
	presenceQueue = "procfleet-worker" // every announcement goes to one worker
	presenceRoom  = 8192               // announcements waiting
	presenceBatch = 500
)

// start subscribes; stop ends it.
func (p *presence) start() error {
	p.arriving = make(chan *nats.Msg, presenceRoom)
	sub, err := p.conn.ChanQueueSubscribe(agentproto.PresenceAll, presenceQueue, p.arriving)
	if err != nil {
		return fmt.Errorf("subscribe to agents' announcements: %w", err)
	}
	p.sub = sub
	return nil
}

// stop is for the end of a worker; it fails only when the connection is gone.
func (p *presence) stop() { _ = p.sub.Unsubscribe() }

// run takes announcements until ctx ends.
func (p *presence) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-p.arriving:
			p.announce(ctx, p.gather(first))
		}
	}
}

// heard is an announcement and where to answer it.
type heard struct {
	announcement taskstore.Announcement
	reply        string
}

func (p *presence) gather(first *nats.Msg) []heard {
	timer := time.NewTimer(p.timing.PresenceLinger)
	defer timer.Stop()
	batch := p.add(nil, first)
	for len(batch) < presenceBatch {
		select {
		case msg := <-p.arriving:
			batch = p.add(batch, msg)
		case <-timer.C:
			return batch
		}
	}
	return batch
}

func (p *presence) add(batch []heard, msg *nats.Msg) []heard {
	a, err := decodePresence(msg.Data, msg.Subject)
	if err != nil {
		p.log.WithError(err).WithField("subject", msg.Subject).Warn("announcement dropped")
		p.metrics.announcements(1, announcedBad)
		return batch
	}
	return append(batch, heard{a, msg.Reply})
}

func decodePresence(data []byte, subject string) (taskstore.Announcement, error) {
	var message agentproto.Presence
	if err := agentproto.Decode(data, agentproto.TypePresence, &message); err != nil {
		return taskstore.Announcement{}, err
	}
	host, err := hostFromWire(message.Host, subject)
	if err != nil {
		return taskstore.Announcement{}, err
	}
	if message.Instance == "" || len(message.Instance) > maxWord || len(message.AgentID) > maxWord {
		return taskstore.Announcement{}, fmt.Errorf("announcement of host %s: instance and agent id must be at most %d bytes, and there must be an instance", host, maxWord)
	}
	return taskstore.Announcement{
		Host: host, AgentID: message.AgentID, Instance: message.Instance,
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
	announcements := make([]taskstore.Announcement, len(batch))
	for i := range batch {
		announcements[i] = batch[i].announcement
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
		p.answer(&batch[i])
	}
}

// answer tells the agent the store's time at this very moment.
func (p *presence) answer(h *heard) {
	if !agentproto.ToAgent(h.reply) {
		return
	}
	now := p.clock.now().UTC()
	data, err := agentproto.Encode(&agentproto.PresenceReply{
		Header:     agentproto.Header{Type: agentproto.TypePresenceReply, ID: h.reply, Sent: now},
		ServerTime: now,
	})
	if err == nil {
		err = p.conn.Publish(h.reply, data)
	}
	if err != nil {
		p.log.WithError(err).WithField("host", h.announcement.Host.String()).Warn("announcement not answered")
	}
}
