package local

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// talk is a connection with one request.
type talk struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *talk) Read(p []byte) (int, error)    { return c.in.Read(p) }
func (c *talk) Write(p []byte) (int, error)   { return c.out.Write(p) }
func (c *talk) SetDeadline(_ time.Time) error { return nil }

// FuzzReply sends arbitrary requests. Every reply must be a valid reply.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"version":1,"ask":"processes"}`))
	f.Add([]byte(`{"version":2,"ask":"\u0000"}`))
	s := &Server{Agent: func() Agent { return Agent{} }, Processes: func() []Process { return nil }}
	f.Fuzz(func(t *testing.T, question []byte) {
		c := &talk{in: bytes.NewReader(question)}
		if s.reply(c) != nil {
			return
		}
		var a Reply
		if err := json.Unmarshal(c.out.Bytes(), &a); err != nil || a.Version != Version {
			t.Errorf("%q is answered with %q", question, c.out.Bytes())
		}
	})
}

// FuzzReadReply reads arbitrary replies. An accepted reply has this version, and stays equal when it is
// written and read again.
func FuzzReadReply(f *testing.F) {
	f.Add([]byte(`{"version":1,"at":"2026-01-01T00:00:00Z","agent":{"version":"v"},"processes":[{"key":"a:b"}]}`))
	f.Add([]byte(`{"version":1,"error":"no"}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		first, err := readReply(bytes.NewReader(answer))
		if err != nil {
			return
		}
		if first.Version != Version || first.Error != "" {
			t.Fatalf("%q is taken for an answer", answer)
		}
		text, err := json.Marshal(&first)
		if err != nil {
			return // a moment outside of what RFC 3339 can write
		}
		second, err := readReply(bytes.NewReader(text))
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("it became another: %v\n%s", err, diff)
		}
	})
}
