package bus

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// settingsEach is up to how many hosts are told one by one that their settings
// changed; above, one message tells all.
const settingsEach = 500

// SettingsChanged tells the agents of hosts, of all without any, that what
// holds for them changed. It only writes into the connection's buffer, and may
// be lost: agents ask now and then by themselves.
func (b *Bus) SettingsChanged(hosts []procfleet.Host) error {
	data, err := agentproto.Encode(&agentproto.SettingsChanged{Header: agentproto.Header{
		Type: agentproto.TypeSettingsChanged, ID: uuid.NewString(), Sent: time.Now().UTC(),
	}})
	if err != nil {
		return err
	}
	subjects := []string{agentproto.SettingsChangedAll}
	if n := len(hosts); n > 0 && n <= settingsEach {
		subjects = subjects[:0]
		for _, h := range hosts {
			subjects = append(subjects, agentproto.AgentSubject(int64(h.Cloud), h.Addr))
		}
	}
	for _, subject := range subjects {
		if err := b.js.Conn().Publish(subject, data); err != nil {
			return publishError(fmt.Sprintf("tell the agents of %d hosts that their settings changed", len(hosts)), err)
		}
	}
	return nil
}
