package worker

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestAnAnswerThatFindsNoRoomIsCounted(t *testing.T) {
	t.Parallel()
	overflowed := 0
	a := newAsker(nil, func() { overflowed++ })
	q := a.begin(2)
	for try := range 3 {
		a.route(&nats.Msg{Subject: q.replySubject(0, try), Data: []byte("{}")})
	}
	if len(q.answers) != 2 || overflowed != 1 {
		t.Errorf("of 3 answers %d wait and %d were counted as dropped", len(q.answers), overflowed)
	}
	q.end()
	a.route(&nats.Msg{Subject: q.replySubject(0, 0), Data: []byte("{}")})
	if overflowed != 1 {
		t.Error("an answer that nobody waits for any more is counted")
	}
}
