package agent

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/fleetkey"
)

// believer signs what the agent sends, and says of what comes whether it is
// from a server of its fleet. It is safe for concurrent use.
type believer struct {
	keys    func() *fleetkey.Host
	metrics *metrics
	log     logrus.FieldLogger

	mu   sync.Mutex
	told time.Time // when the log last told of a message that was not believed
}

// sign adds the signatures of a message to its header.
func (b *believer) sign(header nats.Header, messageType, answers string, body []byte) {
	b.keys().Sign(header, &fleetkey.Message{Purpose: messageType, Answers: answers, Body: body})
}

// signed returns a message with its signatures.
func (b *believer) signed(subject, messageType, answers string, body []byte) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = body
	b.sign(msg.Header, messageType, answers, body)
	return msg
}

// believe says why a message is not known to be from a server, counts that,
// and tells it in the log once a minute.
func (b *believer) believe(msg *nats.Msg, messageType, answers string) error {
	err := b.keys().Verify(msg.Header, &fleetkey.Message{Purpose: messageType, Answers: answers, Body: msg.Data})
	if err == nil {
		return nil
	}
	b.metrics.refused(messageType, err)
	if b.tells() {
		b.log.WithError(err).WithField("type", cut(messageType)).Warn("message not believed, nothing is done about it; if all are, enroll this host again")
	}
	return err
}

func (b *believer) tells() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.told.IsZero() && now.Sub(b.told) < time.Minute {
		return false
	}
	b.told = now
	return true
}

// cut bounds a word that anybody may have written.
func cut(word string) string {
	const most = 64
	if len(word) > most {
		return word[:most]
	}
	return word
}
