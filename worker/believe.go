package worker

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// believer signs what goes to agents, and says of what comes from them
// whether it is from them. It is safe for concurrent use.
type believer struct {
	keys    func() *fleetkey.Ring
	metrics *metrics
	log     logrus.FieldLogger

	mu     sync.Mutex
	minute time.Time               // when told was begun
	told   map[procfleet.Host]bool // hosts that were told in the log since then
}

// maxTold bounds the hosts of which the log tells in one minute.
const maxTold = 1000

// signed returns header with the signatures of a message to the agent of a
// host; without keys header itself, which stays as it is either way.
func (b *believer) signed(header nats.Header, host procfleet.Host, m *fleetkey.Message) nats.Header {
	ring := b.keys()
	if ring == nil {
		return header
	}
	with := make(nats.Header, len(header)+1)
	maps.Copy(with, header)
	ring.Sign(with, host.String(), m)
	return with
}

// signs reports whether there are keys at all.
func (b *believer) signs() bool { return b.keys() != nil }

// believe says why a message is not known to be from the agent of a host,
// counts that, and tells it in the log, once a minute for a host.
func (b *believer) believe(header nats.Header, host procfleet.Host, m *fleetkey.Message) error {
	ring := b.keys()
	if ring == nil {
		return nil
	}
	err := ring.Verify(header, host.String(), m)
	if err == nil {
		return nil
	}
	b.metrics.refused(m.Purpose, err)
	if b.tells(host) {
		b.log.WithError(err).WithFields(logrus.Fields{"host": host.String(), "type": m.Purpose, "remedy": remedy(err)}).Warn("message rejected: signature verification failed")
	}
	return err
}

// tells reports whether the log is to tell of a host.
func (b *believer) tells(host procfleet.Host) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.minute) >= time.Minute {
		b.minute, b.told = now, make(map[procfleet.Host]bool)
	}
	if b.told[host] || len(b.told) >= maxTold {
		return false
	}
	b.told[host] = true
	return true
}

// remedy says what an operator does about a host whose signatures are rejected.
func remedy(err error) string {
	switch {
	case errors.Is(err, fleetkey.ErrUnsigned):
		return "the agent has no keys: enroll the host and start the agent with --identity"
	case errors.Is(err, fleetkey.ErrUnknownKey):
		return "the keys of the host are not of this fleet, or were revoked: re-enroll the host"
	}
	return "another NATS client may impersonate the host or alter its messages: check who can publish, and re-enroll the host if its identity was stolen"
}
