package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// settings tells agents what holds for their hosts, in batches. An agent that
// is not answered asks again.
type settings struct {
	conn     *nats.Conn
	store    Store
	believer *believer
	clock    *clock
	timing   *Timing
	metrics  *metrics
	log      logrus.FieldLogger

	failing bool // the last batch could not be looked up
}

// inbox is where questions come in, of some 200 bytes each: after a change all
// agents ask within 2 s.
func (s *settings) inbox() *inbox {
	return &inbox{
		conn: s.conn, subject: agentproto.SettingsAll, name: "settings", log: s.log,
		room: 32 << 10, roomBytes: 16 << 20, batch: 500, batchBytes: 4 << 20,
		take: s.take, overflow: func(*nats.Msg) { s.metrics.settings(settingsOverflowed) }, metrics: s.metrics,
	}
}

// asked is a host whose agent asked, and where to answer it.
type asked struct {
	host  procfleet.Host
	id    string // of the message
	reply string
}

// take answers the questions.
func (s *settings) take(ctx context.Context, msgs []*nats.Msg) {
	var batch []asked
	for _, msg := range msgs {
		batch = s.add(batch, msg)
	}
	s.answer(ctx, batch)
}

func (s *settings) add(batch []asked, msg *nats.Msg) []asked {
	message, host, err := decodeSettingsAsk(msg.Data, msg.Subject)
	if err == nil && !agentproto.ToAgent(msg.Reply) {
		err = errors.New("there is nowhere to answer it")
	}
	if err != nil {
		s.log.WithError(err).WithField("subject", msg.Subject).Warn("settings request dropped")
		s.metrics.settings(settingsBad)
		return batch
	}
	if s.believer.believe(msg.Header, host, &fleetkey.Message{Purpose: agentproto.TypeSettingsAsk, Body: msg.Data}) != nil {
		s.metrics.settings(settingsBad)
		return batch
	}
	return append(batch, asked{host, message.ID, msg.Reply})
}

func decodeSettingsAsk(data []byte, subject string) (message agentproto.SettingsAsk, host procfleet.Host, err error) {
	if err = agentproto.Decode(data, agentproto.TypeSettingsAsk, &message); err == nil {
		host, err = hostFromWire(message.Host, subject)
	}
	return message, host, err
}

func (s *settings) answer(ctx context.Context, batch []asked) {
	if len(batch) == 0 {
		return
	}
	all, err := s.look(ctx, batch)
	if err != nil && ctx.Err() == nil && !s.failing { // once in a row
		s.log.WithError(err).WithField("hosts", len(batch)).Warn("settings unreadable, agents keep the previous ones")
	}
	s.failing = err != nil
	for i, a := range batch {
		reply := agentproto.SettingsReply{}
		if err != nil {
			reply.Error = "the store cannot be asked now"
		} else {
			reply.Settings = all[i]
		}
		s.send(a, &reply)
	}
}

// look reads what holds for each host.
func (s *settings) look(ctx context.Context, batch []asked) ([]agentproto.Settings, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timing.StoreCall, errStoreSlow)
	defer cancel()
	hosts := make([]procfleet.Host, len(batch))
	for i := range batch {
		hosts[i] = batch[i].host
	}
	freezes, err := s.store.FreezesOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	groups, err := s.store.GroupsOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	all := make([]agentproto.Settings, len(batch))
	for i := range batch {
		all[i] = agentproto.Settings{Freezes: wireFreezes(freezes[i]), Groups: wireGroups(groups[i])}
	}
	return all, nil
}

// wireFreezes shortens reasons, of which agents need none, so that many freezes
// fit a message.
func wireFreezes(freezes []catalog.Freeze) []agentproto.Freeze {
	var wire []agentproto.Freeze
	for _, f := range freezes {
		wire = append(wire, agentproto.Freeze{Namespace: f.Namespace, Until: f.Until, Reason: cut(f.Reason, maxWord)})
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

// send answers with the store's time at this very moment. What does not fit a
// message is an error that the agent is told, so that its host keeps what it had.
func (s *settings) send(to asked, reply *agentproto.SettingsReply) {
	data, err := s.encode(to, reply)
	if err == nil && int64(len(data)) > s.conn.MaxPayload()-fleetkey.HeaderRoom {
		s.log.WithField("host", to.host.String()).WithField("bytes", len(data)).Error("settings too large for a message")
		reply.Settings = agentproto.Settings{}
		reply.Error = fmt.Sprintf("the settings have %d bytes, a message takes %d: there are too many groups or freezes", len(data), s.conn.MaxPayload())
		data, err = s.encode(to, reply)
	}
	if err == nil {
		message := fleetkey.Message{Purpose: agentproto.TypeSettingsReply, Answers: to.id, Body: data}
		err = s.conn.PublishMsg(&nats.Msg{Subject: to.reply, Data: data, Header: s.believer.signed(nil, to.host, &message)})
	}
	switch {
	case err != nil:
		s.log.WithError(err).WithField("host", to.host.String()).Warn("settings reply not sent")
		s.metrics.settings(settingsLost)
	case reply.Error != "":
		s.metrics.settings(settingsUnknown)
	default:
		s.metrics.settings(settingsTold)
	}
}

func (s *settings) encode(to asked, reply *agentproto.SettingsReply) ([]byte, error) {
	now := s.clock.now().UTC()
	reply.Header = agentproto.Header{Type: agentproto.TypeSettingsReply, ID: to.reply, Sent: now}
	reply.ServerTime = now.Truncate(time.Microsecond)
	return agentproto.Encode(reply)
}
