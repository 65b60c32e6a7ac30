package hosts

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/label"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// presence stores announcements of agents in batches and replies with the store's time.
// After a lost announcement, the agent repeats it within 30 s.
type presence struct {
	receiver
	store  Store
	claims *agentlink.IDClaims
}

// inbox returns the inbox of announcements. An announcement has about 300 bytes.
func (p *presence) inbox(linger time.Duration) *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: p.link, Subject: agentproto.PresenceAll, Name: "presence", Log: p.log,
		Limit: 8192, LimitBytes: 16 << 20, Batch: 500, BatchBytes: 4 << 20, Linger: linger,
		Take: inBatch(p.add, p.announce), Overflow: p.overflowed,
	}
}

// received is a verified announcement with its reply subject.
type received struct {
	announcement taskstore.Announcement
	id           string // id of the message
	reply        string
	refusedID    string // why the agent id was refused; "" if it was accepted
	// other is a second live agent on the same host, as reported by the announcement;
	// nil if there is none.
	other *agentproto.AgentProcess
}

// announcements returns the announcements to store. If there is another live agent,
// they alternate between both agents: stores treat this as a conflict.
func (r *received) announcements() []taskstore.Announcement {
	own := r.announcement
	if r.other == nil {
		return []taskstore.Announcement{own}
	}
	other := own
	other.Instance, other.Incarnation = r.other.Instance, r.other.Incarnation
	return []taskstore.Announcement{own, other, own}
}

func (p *presence) add(batch []received, msg *nats.Msg) []received {
	message, a, err := decodePresence(msg.Data, msg.Subject)
	if !p.verified(msg, a.Host, err) {
		return batch
	}
	r := received{announcement: a, id: message.ID, reply: msg.Reply, other: message.Other}
	// Without signatures the time can be forged, so a check would be useless.
	if p.link.Auth.HasKeys() && p.link.Clock.Now().Sub(message.Sent).Abs() > presenceWindow {
		p.counter.Add(1, metrics.Stale)
		p.answer(&r, true)
		return batch
	}
	if p.link.Auth.VerifiedAgentID(msg.Header, a.Host, a.AgentID) != a.AgentID {
		// Refuse only the agent id: the verified host stays reachable by address.
		p.link.Metrics.RefusedIDs.Add(context.Background(), 1)
		r.announcement.AgentID, r.refusedID = "", p.claims.Refused(a.Host, a.Instance, a.AgentID)
	}
	return append(batch, r)
}

// presenceWindow is the largest accepted difference between an announcement's send time
// and the store's time. A replay can make a dead host look alive for at most this long.
const presenceWindow = 30 * time.Second

func decodePresence(data []byte, subject string) (message agentproto.Presence, a taskstore.Announcement, err error) {
	if err := agentproto.Decode(data, agentproto.TypePresence, &message); err != nil {
		return message, taskstore.Announcement{}, err
	}
	host, err := agentlink.ParseHost(message.Host, subject)
	if err != nil {
		return message, taskstore.Announcement{}, err
	}
	const most = agentlink.MaxName
	valid := func(id string) bool { return id != "" && len(id) <= most }
	if !valid(message.Instance) || !valid(message.Incarnation) || len(message.AgentID) > most {
		return message, taskstore.Announcement{}, fmt.Errorf("announcement of host %s: instance and incarnation must have 1 to %d bytes, agent id at most %[2]d", host, most)
	}
	if o := message.Other; o != nil && (!valid(o.Instance) || !valid(o.Incarnation) || message.Leaving) {
		return message, taskstore.Announcement{}, fmt.Errorf("announcement of host %s: instance and incarnation of other must have 1 to %d bytes, and the agent must not be leaving", host, most)
	}
	labels, err := checkedLabels(message.Labels)
	if err != nil {
		return message, taskstore.Announcement{}, fmt.Errorf("announcement of host %s: %w", host, err)
	}
	return message, taskstore.Announcement{
		Host: host, AgentID: message.AgentID, Instance: message.Instance, Incarnation: message.Incarnation,
		Version: agentlink.Cut(message.Version, most), OS: agentlink.Cut(message.OS, most), Arch: agentlink.Cut(message.Arch, most),
		Labels: labels, StartedAt: message.StartedAt, Supervised: max(0, message.Supervised), Leaving: message.Leaving,
		CPU: percent(message.CPU), Memory: percent(message.Memory),
	}, nil
}

// checkedLabels returns labels that are valid; nil if there are none.
func checkedLabels(labels map[string]string) (map[string]string, error) {
	if len(labels) == 0 {
		return nil, nil //nolint:nilnil // no labels
	}
	if len(labels) > label.Max {
		return nil, fmt.Errorf("more than %d labels", label.Max)
	}
	for key, value := range labels {
		if err := label.Check(key, value); err != nil {
			return nil, err
		}
	}
	return labels, nil
}

func percent(part float64) float64 { return min(max(part, 0), 100) }

func (p *presence) announce(ctx context.Context, batch []received) {
	announcements := make([]taskstore.Announcement, 0, len(batch))
	for i := range batch {
		announcements = append(announcements, batch[i].announcements()...)
	}
	stored := p.write(ctx, len(batch), func(ctx context.Context) error { return p.store.Announce(ctx, announcements) })
	if !stored {
		return
	}
	for i := range batch {
		p.answer(&batch[i], false)
	}
}

// answer replies with the store time; again requests a new announcement with it.
func (p *presence) answer(r *received, again bool) {
	if !agentproto.ToAgent(r.reply) {
		return
	}
	now := p.link.Clock.Now().UTC()
	data, err := agentproto.Encode(&agentproto.PresenceReply{
		Header:     agentproto.Header{Type: agentproto.TypePresenceReply, ID: r.reply, Sent: now},
		ServerTime: now, Again: again, AgentIDRefused: r.refusedID,
	})
	if err == nil {
		err = p.link.Reply(r.reply, r.announcement.Host, &fleetkey.Message{Purpose: agentproto.TypePresenceReply, Answers: r.id, Body: data})
	}
	if err != nil {
		p.log.WithError(err).WithField("host", r.announcement.Host.String()).Warn("announcement reply not sent")
	}
}
