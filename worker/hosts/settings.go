package hosts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// settings replies to agents with the settings of their hosts, in batches. An agent
// that gets no reply repeats its request.
type settings struct {
	receiver
	catalog Catalog
}

// inbox returns the inbox of settings requests. A request has about 200 bytes, and
// after a change every agent sends one within 2 s.
func (s *settings) inbox() *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: s.link, Subject: agentproto.SettingsAll, Name: "settings", Log: s.log,
		Limit: 32 << 10, LimitBytes: 16 << 20, Batch: 500, BatchBytes: 4 << 20,
		Take: inBatch(s.add, s.answer), Overflow: s.overflowed,
	}
}

// request is a settings request with its reply subject.
type request struct {
	host  procfleet.Host
	id    string // id of the message
	reply string
}

func (s *settings) add(batch []request, msg *nats.Msg) []request {
	message, host, err := decodeSettingsRequest(msg.Data, msg.Subject)
	if err == nil && !agentproto.ToAgent(msg.Reply) {
		err = errors.New("the message has no reply subject of an agent")
	}
	if !s.verified(msg, host, err) {
		return batch
	}
	return append(batch, request{host, message.ID, msg.Reply})
}

func decodeSettingsRequest(data []byte, subject string) (message agentproto.SettingsRequest, host procfleet.Host, err error) {
	if err = agentproto.Decode(data, agentproto.TypeSettingsRequest, &message); err == nil {
		host, err = agentlink.ParseHost(message.Host, subject)
	}
	return message, host, err
}

func (s *settings) answer(ctx context.Context, batch []request) {
	all, err := s.read(ctx, batch)
	if err != nil && ctx.Err() == nil && !s.failing { // log the first of consecutive failures
		s.log.WithError(err).WithField("hosts", len(batch)).Warn("settings unreadable, agents keep the previous ones")
	}
	s.failing = err != nil
	for i, r := range batch {
		reply := agentproto.SettingsReply{}
		if err != nil {
			reply.Error = "the task store is unavailable"
		} else {
			reply.Settings = all[i]
		}
		s.send(r, &reply)
	}
}

// read returns the settings of each host.
func (s *settings) read(ctx context.Context, batch []request) ([]agentproto.Settings, error) {
	ctx, cancel := s.link.Calls.WithTimeout(ctx)
	defer cancel()
	hosts := make([]procfleet.Host, len(batch))
	for i := range batch {
		hosts[i] = batch[i].host
	}
	freezes, err := s.catalog.FreezesOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	groups, err := s.catalog.GroupsOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	all := make([]agentproto.Settings, len(batch))
	for i := range batch {
		all[i] = agentproto.Settings{Freezes: wireFreezes(freezes[i]), Groups: wireGroups(groups[i])}
	}
	return all, nil
}

// wireFreezes converts freezes for agents. It truncates the reasons, which agents do
// not use, so that many freezes fit into one message.
func wireFreezes(freezes []catalog.Freeze) []agentproto.Freeze {
	var wire []agentproto.Freeze
	for _, f := range freezes {
		wire = append(wire, agentproto.Freeze{Namespace: f.Namespace, Until: f.Until, Reason: agentlink.Cut(f.Reason, agentlink.MaxName)})
	}
	return wire
}

func wireGroups(groups []catalog.HostGroups) []agentproto.Group {
	var wire []agentproto.Group
	for _, g := range groups {
		for _, one := range g.Groups {
			wire = append(wire, agentproto.Group{
				Namespace: g.Namespace, ID: one.ID, CPULimit: one.CPULimit, MemoryLimit: one.MemoryLimit,
				CPUByLimit: one.CPUByLimit, MemoryByLimit: one.MemoryByLimit,
			})
		}
	}
	return wire
}

// send replies with the current store time. Settings that exceed the maximum message
// size are replaced by an error, and the agent keeps its previous settings.
func (s *settings) send(to request, reply *agentproto.SettingsReply) {
	data, err := s.encode(to, reply)
	if err == nil && int64(len(data)) > s.link.Conn.MaxPayload()-fleetkey.HeaderRoom {
		s.log.WithField("host", to.host.String()).WithField("bytes", len(data)).Error("settings too large for a message")
		reply.Settings = agentproto.Settings{}
		reply.Error = fmt.Sprintf("the settings have %d bytes, a message at most %d: reduce the groups or freezes", len(data), s.link.Conn.MaxPayload())
		data, err = s.encode(to, reply)
	}
	if err == nil {
		err = s.link.Reply(to.reply, to.host, &fleetkey.Message{Purpose: agentproto.TypeSettingsReply, Answers: to.id, Body: data})
	}
	switch {
	case err != nil:
		s.log.WithError(err).WithField("host", to.host.String()).Warn("settings reply not sent")
		s.counter.Add(1, metrics.NotAnswered)
	case reply.Error != "":
		s.counter.Add(1, metrics.NotKnown)
	default:
		s.counter.Add(1, metrics.Answered)
	}
}

func (s *settings) encode(to request, reply *agentproto.SettingsReply) ([]byte, error) {
	now := s.link.Clock.Now().UTC()
	reply.Header = agentproto.Header{Type: agentproto.TypeSettingsReply, ID: to.reply, Sent: now}
	reply.ServerTime = now.Truncate(time.Microsecond)
	return agentproto.Encode(reply)
}
