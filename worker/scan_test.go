package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/agentproto"
)

// Messages with every field set are read the quick way, and alike.
func TestWholeMessagesAreReadQuickly(t *testing.T) {
	t.Parallel()
	results := filled[agentproto.Results]()
	results.Type = agentproto.TypeResults
	data, err := agentproto.Encode(&results)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := readResults(data)
	if diff := cmp.Diff(results, got); !ok || diff != "" {
		t.Errorf("read %v:\n%s", ok, diff)
	}

	result := results.Results[0]
	reply := agentproto.Reply{
		Header: agentproto.Header{Type: agentproto.TypeReply, ID: "x", Sent: time.Unix(1, 0).UTC()}, Instance: "i",
		Refused: "host", Message: "no", Items: []agentproto.ReplyItem{{Item: 1}, {Item: -2, Result: &result}},
	}
	if data, err = agentproto.Encode(&reply); err != nil {
		t.Fatal(err)
	}
	gotReply, ok := readReply(data)
	if diff := cmp.Diff(reply, gotReply); !ok || diff != "" {
		t.Errorf("read %v:\n%s", ok, diff)
	}
}

var scanSeeds = []string{
	`{}`, `{"type":"procfleet.agent.v1.results","results":[]}`, `{"type":"procfleet.agent.v1.reply","items":[{"item":1,"result":{}}]}`,
	`{"type":"procfleet.agent.v1.results","results":[{"item":01}]}`, `{"type":"procfleet.agent.v1.results","results":[{"item":1.5}]}`,
	`{"type":"procfleet.agent.v1.results","results":[{"item":1,"Item":2,"status":{"cpu":0.5,"at":"2026-01-01T00:00:00Z"},"status":{"pid":3}}]}`,
	`{"type":"procfleet.agent.v1.results","results":[{"warnings":["a","b"],"message":"\u0041"}],"results":null}`,
	`{"type":"procfleet.agent.v1.results","sent":"2026-01-01T24:00:00Z"}`, `{"type":"procfleet.agent.v1.results","host":"\x80"} `,
}

// Whatever the quick way reads, the decoder must read too, and alike.
func FuzzScan(f *testing.F) {
	for _, seed := range scanSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, ok := readResults(data); ok {
			var want agentproto.Results
			if err := agentproto.Decode(data, agentproto.TypeResults, &want); err != nil {
				t.Fatalf("read what is not valid: %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
		}
		if got, ok := readReply(data); ok {
			var want agentproto.Reply
			if err := agentproto.Decode(data, agentproto.TypeReply, &want); err != nil {
				t.Fatalf("read what is not valid: %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}
