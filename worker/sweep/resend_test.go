package sweep

import (
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// FuzzResendReply replies to a resend request with arbitrary data. The reply must not affect an
// item that was not in the request.
func FuzzResendReply(f *testing.F) {
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.resend_reply","unknown":[10,12],"running":[11]}`))
	f.Add(1<<30, []byte("\xff"))
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		f.Fatal(err)
	}
	auth := &agentlink.Authenticator{Keys: func() *fleetkey.Ring { return nil }, Log: testenv.Silent()}
	s := &Sweeper{cfg: Config{Link: &agentlink.Link{Auth: auth}}}
	f.Fuzz(func(t *testing.T, index int, data []byte) {
		if index < 0 {
			return // no reply subject has this
		}
		batch := agentlink.NewRequester(nil, func() {}).Begin(1)
		reply, _ := s.readReply(batch, &agentlink.Reply{Host: index, Data: data}, []*itemsOfHost{{host: host, items: []int{10, 11}}})
		for _, item := range append(reply.unknown, reply.known...) {
			if item != 10 && item != 11 {
				t.Errorf("item %d was not in the request", item)
			}
		}
	})
}
