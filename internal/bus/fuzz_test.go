package bus

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
)

func FuzzDecodeHostEvent(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.event","host":"0:10.0.0.1","instance":"i","kind":"gave_up","key":"a:b","message":"m","at":"2026-01-01T00:00:00Z"}`), "procfleet.event.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		e, _, err := DecodeHostEvent(data, subject)
		if err != nil {
			return
		}
		if e.Host.IsZero() || e.Kind == "" || len(e.Kind) > maxEventText || len(e.Key) > procfleet.MaxKey || len(e.Message) > procfleet.MaxMessage {
			t.Errorf("event %+v got through", e)
		}
	})
}

func FuzzRecordOfEvent(f *testing.F) {
	f.Add(SubjectFinished, []byte(`{"event":"a/finished","task":"a","state":"finished","counts":{"succeeded":1},"items":1}`))
	f.Add(SubjectFinished, []byte(`{"event":"a/finished","items":0}`))
	f.Add(taskPrefix+"held", []byte(`{"event":"a/2","number":2,"task":"a","kind":"held","hold":"budget","stage":1}`))
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		if subject == subjectAccepted || subject == subjectRejected {
			return // such an event is the record
		}
		if record := recordOfEvent(subject, data); record != nil && !json.Valid(record) {
			t.Errorf("record %q", record)
		}
	})
}

// FuzzCheckReplySubject checks arbitrary reply subjects of producers. No accepted one may be a subject of an
// agent or of the server.
func FuzzCheckReplySubject(f *testing.F) {
	for _, subject := range []string{"_INBOX.a.b", "_INBOX.producer.U.a.b", "_INBOX.3.10-0-0-1.a.b", "_INBOX.server.a", "_INBOX.system.U.a", "procfleet.agent.0.10-0-0-1", "Procfleet.x", "$JS.API.STREAM.DELETE.X", "a..b", "a.>", "a b"} {
		f.Add(subject)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		if CheckReplySubject(subject) != nil {
			return
		}
		first, _, _ := strings.Cut(strings.ToLower(subject), ".")
		if first == "procfleet" || first == "" || first[0] == '$' || strings.ContainsAny(subject, "*> \t\r\n") ||
			strings.HasPrefix(subject, "_INBOX.server.") || strings.HasPrefix(subject, "_INBOX.3.10-0-0-1.") {
			t.Errorf("%q is allowed", subject)
		}
	})
}
