package collect

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
)

func FuzzDecodeResults(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.results","task":"GSETASK:20260101000000:1","host":"0:10.0.0.1","results":[{"item":-1,"code":0,"reason":"succeeded"}]}`), "procfleet.result.s.0")
	f.Add([]byte(`{"type":"procfleet.agent.v1.results","task":"GSETASK:20260101000000:1","host":"0:10.0.0.1","results":[{"item":1,"code":0,"reason":"succeeded"}]}`), "procfleet.result.s.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		decoded, err := decodeResults(&nats.Msg{Subject: subject, Data: data})
		if err != nil {
			return
		}
		for _, r := range decoded.Results {
			if r.Item < 0 || r.Code == 0 && r.Reason != procfleet.ReasonSucceeded || len(r.Message) > procfleet.MaxMessage {
				t.Errorf("result %+v got through", r)
			}
		}
	})
}
