package bus

import (
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// settingsEach is how many hosts get a message of their own when their settings
// change; more hosts are notified by one message to all.
const settingsEach = 500

// SettingsChanged notifies the agents of hosts, or all agents if hosts is empty,
// that their settings changed. It only writes into the connection's buffer, and
// may be lost: agents also request their settings periodically. The message to
// all is not signed, since they have no common key.
func (b *Bus) SettingsChanged(hosts []procfleet.Host) error {
	data, err := agentproto.Encode(&agentproto.SettingsChanged{Header: agentproto.Header{
		Type: agentproto.TypeSettingsChanged, ID: uuid.NewString(), Sent: time.Now().UTC(),
	}})
	if err != nil {
		return err
	}
	if n := len(hosts); n == 0 || n > settingsEach {
		return b.notifyAgents(&nats.Msg{Subject: agentproto.SettingsChangedAll, Data: data})
	}
	message := fleetkey.Message{Purpose: agentproto.TypeSettingsChanged, Body: data}
	for _, h := range hosts {
		msg := nats.NewMsg(agentproto.AgentSubject(int64(h.Cloud), h.Addr))
		msg.Data = data
		b.keys().Sign(msg.Header, h.String(), &message)
		if err := b.notifyAgents(msg); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bus) notifyAgents(msg *nats.Msg) error {
	if err := b.js.Conn().PublishMsg(msg); err != nil {
		return publishError("notify agents of changed settings", err)
	}
	return nil
}
