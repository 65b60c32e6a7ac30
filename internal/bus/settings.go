package bus

import (
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// settingsEach is up to how many hosts are told one by one that their settings
// changed; above, one message tells all.
const settingsEach = 500

// SettingsChanged tells the agents of hosts, of all without any, that what
// holds for them changed. It only writes into the connection's buffer, and may
// be lost: agents ask now and then by themselves. What goes to all is not
// signed, since no key is common to them.
func (b *Bus) SettingsChanged(hosts []procfleet.Host) error {
	data, err := agentproto.Encode(&agentproto.SettingsChanged{Header: agentproto.Header{
		Type: agentproto.TypeSettingsChanged, ID: uuid.NewString(), Sent: time.Now().UTC(),
	}})
	if err != nil {
		return err
	}
	if n := len(hosts); n == 0 || n > settingsEach {
		return b.tellAgents(&nats.Msg{Subject: agentproto.SettingsChangedAll, Data: data})
	}
	message := fleetkey.Message{Purpose: agentproto.TypeSettingsChanged, Body: data}
	for _, h := range hosts {
		msg := nats.NewMsg(agentproto.AgentSubject(int64(h.Cloud), h.Addr))
		msg.Data = data
		b.keys().Sign(msg.Header, h.String(), &message)
		if err := b.tellAgents(msg); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bus) tellAgents(msg *nats.Msg) error {
	if err := b.js.Conn().PublishMsg(msg); err != nil {
		return publishError("tell agents that their settings changed", err)
	}
	return nil
}
