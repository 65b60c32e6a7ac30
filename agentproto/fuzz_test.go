package agentproto

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// fuzzDecode checks that decoding one type never panics, and that what it
// reads is read the same after it was encoded again.
func fuzzDecode(f *testing.F, kind string) {
	f.Helper()
	for _, m := range samples(f) {
		if m.MessageType() != kind {
			continue
		}
		data, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"type":"` + kind + `"}`))
	f.Add([]byte(`{"type":"` + kind + `","items":null,"results":[{}],"specs":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMessage(kind)
		if Decode(data, kind, m) != nil {
			return
		}
		if got, err := PeekType(data); err != nil || got != kind {
			t.Fatalf("decoded, but peeked %q, %v", got, err)
		}
		again, err := Encode(m)
		if err != nil {
			return // a moment outside of what RFC 3339 can write
		}
		if len(again) > MaxMessageBytes {
			return // escapes made it longer
		}
		m2 := newMessage(kind)
		if err := Decode(again, kind, m2); err != nil {
			t.Fatalf("own encoding is refused: %v\n%s", err, again)
		}
		third, err := Encode(m2)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(meaning(t, again), meaning(t, third)); diff != "" { // members of maps have no order
			t.Fatalf("meaning changed:\n%s", diff)
		}
	})
}

func FuzzDecodeCommand(f *testing.F)         { fuzzDecode(f, TypeCommand) }
func FuzzDecodeReply(f *testing.F)           { fuzzDecode(f, TypeReply) }
func FuzzDecodeResults(f *testing.F)         { fuzzDecode(f, TypeResults) }
func FuzzDecodeReceipt(f *testing.F)         { fuzzDecode(f, TypeReceipt) }
func FuzzDecodeResend(f *testing.F)          { fuzzDecode(f, TypeResend) }
func FuzzDecodeResendReply(f *testing.F)     { fuzzDecode(f, TypeResendReply) }
func FuzzDecodeCancel(f *testing.F)          { fuzzDecode(f, TypeCancel) }
func FuzzDecodeCancelReply(f *testing.F)     { fuzzDecode(f, TypeCancelReply) }
func FuzzDecodeOutput(f *testing.F)          { fuzzDecode(f, TypeOutput) }
func FuzzDecodeOutputReply(f *testing.F)     { fuzzDecode(f, TypeOutputReply) }
func FuzzDecodePresence(f *testing.F)        { fuzzDecode(f, TypePresence) }
func FuzzDecodePresenceReply(f *testing.F)   { fuzzDecode(f, TypePresenceReply) }
func FuzzDecodeProcesses(f *testing.F)       { fuzzDecode(f, TypeProcesses) }
func FuzzDecodeEvent(f *testing.F)           { fuzzDecode(f, TypeEvent) }
func FuzzDecodeSettingsRequest(f *testing.F) { fuzzDecode(f, TypeSettingsRequest) }
func FuzzDecodeSettingsReply(f *testing.F)   { fuzzDecode(f, TypeSettingsReply) }
func FuzzDecodeSettingsChanged(f *testing.F) { fuzzDecode(f, TypeSettingsChanged) }

func FuzzPeekType(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.command","items":[`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if kind, err := PeekType(data); err != nil && kind != "" {
			t.Fatalf("type %q and error %v", kind, err)
		}
	})
}

func FuzzBounded(f *testing.F) {
	f.Add("short", "text", 3)
	f.Add("\xff\xfe", "\x00\x01", 20_000)
	f.Fuzz(func(t *testing.T, message, text string, times int) {
		times = max(0, min(times, 20_000))
		many := func(s string) string { return strings.Repeat(s, min(times, 64<<10/max(1, len(s))+1)) }
		r := Result{
			Message: many(message), Status: &Status{Evidence: many(text)},
			Warnings: slices.Repeat([]string{"w"}, times),
		}
		b := r.Bounded()
		if !utf8.ValidString(b.Message) || len(b.Message) > MaxMessage {
			t.Fatalf("message of %d bytes, valid %v", len(b.Message), utf8.ValidString(b.Message))
		}
		data, err := json.Marshal(&b)
		if err != nil || len(data) > MaxResult {
			t.Fatalf("result of %d bytes, %v", len(data), err)
		}
	})
}
