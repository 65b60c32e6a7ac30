package local

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"
	"time"
)

// talk is a connection on which one question came.
type talk struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *talk) Read(p []byte) (int, error)    { return c.in.Read(p) }
func (c *talk) Write(p []byte) (int, error)   { return c.out.Write(p) }
func (c *talk) SetDeadline(_ time.Time) error { return nil }

// FuzzAnswer asks anything: what is answered is an answer.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"ask":"processes"}`))
	f.Add([]byte(`{"version":2,"ask":"\u0000"}`))
	s := &Server{Agent: func() Agent { return Agent{} }, Processes: func() []Process { return nil }}
	f.Fuzz(func(t *testing.T, question []byte) {
		c := &talk{in: bytes.NewReader(question)}
		if s.answer(c) != nil {
			return
		}
		var a Answer
		if err := json.Unmarshal(c.out.Bytes(), &a); err != nil || a.Version != Version {
			t.Errorf("%q is answered with %q", question, c.out.Bytes())
		}
	})
}
