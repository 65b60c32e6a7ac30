package agent

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/fleetkey"
)

// authenticator signs the messages of the agent and verifies that received ones
// are from a server of its fleet. It is safe for concurrent use.
type authenticator struct {
	keys    func() *fleetkey.Host
	metrics *metrics
	log     logrus.FieldLogger

	mu     sync.Mutex
	logged time.Time // when a rejected message was last logged
}

// sign adds the signatures of a message to its header.
func (b *authenticator) sign(header nats.Header, messageType, answers string, body []byte) {
	b.keys().Sign(header, &fleetkey.Message{Purpose: messageType, Answers: answers, Body: body})
}

// signed returns a message with its signatures.
func (b *authenticator) signed(subject, messageType, answers string, body []byte) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = body
	b.sign(msg.Header, messageType, answers, body)
	return msg
}

// verify returns why a message is not known to be from a server. It counts the
// rejection and logs one a minute.
func (b *authenticator) verify(msg *nats.Msg, messageType, answers string) error {
	err := b.keys().Verify(msg.Header, &fleetkey.Message{Purpose: messageType, Answers: answers, Body: msg.Data})
	if err == nil {
		return nil
	}
	b.metrics.refused(messageType, err)
	if b.dueToLog() {
		b.log.WithError(err).WithField("type", cut(messageType)).Warn("message rejected: signature verification failed; re-enroll if repeated")
	}
	return err
}

func (b *authenticator) dueToLog() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.logged.IsZero() && now.Sub(b.logged) < time.Minute {
		return false
	}
	b.logged = now
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
