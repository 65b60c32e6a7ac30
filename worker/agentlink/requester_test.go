package agentlink

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestAReplyBeyondTheLimitIsCounted(t *testing.T) {
	t.Parallel()
	overflowed := 0
	a := NewRequester(nil, func() { overflowed++ })
	q := a.Begin(2)
	for try := range 3 {
		a.route(&nats.Msg{Subject: q.ReplySubject(0, try), Data: []byte("{}")})
	}
	if len(q.Replies) != 2 || overflowed != 1 {
		t.Errorf("of 3 replies %d wait and %d were counted as dropped", len(q.Replies), overflowed)
	}
	q.End()
	a.route(&nats.Msg{Subject: q.ReplySubject(0, 0), Data: []byte("{}")})
	if overflowed != 1 {
		t.Error("a reply to a batch that ended is counted")
	}
}

func FuzzReplyToken(f *testing.F) {
	f.Add("1-0-1", []byte("{}"))
	f.Add("1-zik0zj-zik0zj", []byte("\xff"))
	f.Fuzz(func(t *testing.T, token string, data []byte) {
		r := NewRequester(nil, func() {})
		batch := r.Begin(1)
		r.route(&nats.Msg{Subject: r.prefix + token, Data: data})
		if len(batch.Replies) == 0 {
			return
		}
		if reply := <-batch.Replies; reply.Host < 0 || reply.Try < 0 || reply.NoResponders {
			t.Errorf("token %q leads to host %d, attempt %d", token, reply.Host, reply.Try)
		}
	})
}
