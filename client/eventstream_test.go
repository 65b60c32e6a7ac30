package client

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestEventsAreReadAsTheStandardSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want string }{
		"an event":              {"event: end\ndata: x\n\n", "end=x "},
		"without a space":       {"event:end\ndata:x\n\n", "end=x "},
		"one space is dropped":  {"data:  x\n\n", "= x "},
		"CRLF":                  {"event: a\r\ndata: x\r\n\r\nevent: b\r\ndata: y\r\n\r\n", "a=x b=y "},
		"CR":                    {"event: a\rdata: x\r\revent: b\rdata: y\r\r", "a=x b=y "},
		"mixed ends":            {"event: a\r\ndata: x\n\r\ndata: y\r\n\n", "a=x =y "},
		"data over lines":       {"data: {\ndata: }\n\n", "={\n} "},
		"data without a value":  {"data\n\n", "= "},
		"comments":              {": still here\n\n:\n\ndata: x\n: more\n\n", "=x "},
		"unknown fields":        {"colour: red\ndata: x\nsize\n\n", "=x "},
		"a byte order mark":     {"\ufeffdata: x\n\n", "=x "},
		"nothing without data":  {"event: a\n\ndata: x\n\n", "=x "},
		"cut before its end":    {"data: x\n\nevent: b\ndata: y\n", "=x "},
		"colons in the data":    {"data: a:b: c\n\n", "=a:b: c "},
		"an empty stream":       {"", ""},
		"only ends of lines":    {"\n\r\n\r\n\n", ""},
		"the last name counts":  {"event: a\nevent: b\ndata: x\n\n", "b=x "},
		"names are exact":       {"Data: x\n data: y\n\n", ""},
		"a name with no colon":  {"event\ndata: x\n\n", "=x "},
		"text that is not UTF8": {"data: \xff\n\n", "=\xff "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, in := range []io.Reader{strings.NewReader(test.in), iotest.OneByteReader(strings.NewReader(test.in))} {
				var got strings.Builder
				r := newEventReader(in)
				var err error
				for err == nil {
					var e event
					if e, err = r.next(); err == nil {
						fmt.Fprintf(&got, "%s=%s ", e.name, e.data)
					}
				}
				if got.String() != test.want || !errors.Is(err, io.EOF) {
					t.Errorf("got %q, %v; want %q", got.String(), err, test.want)
				}
			}
		})
	}
}

func TestIDsCountFromTheEndOfTheirEvent(t *testing.T) {
	t.Parallel()
	r := newEventReader(strings.NewReader("id: 1\ndata: x\n\nid: 2\n\ndata: y\n\nid: a\x00b\ndata: z\n\nid\ndata: z\n\nid: 9\ndata: cut\n"))
	for i, want := range []string{"1", "2", "2", ""} {
		if _, err := r.next(); err != nil || r.lastID != want {
			t.Errorf("event %d: id %q, want %q; %v", i, r.lastID, want, err)
		}
	}
	if _, err := r.next(); err == nil || r.lastID != "" {
		t.Errorf("a cut event has set the id %q", r.lastID)
	}
}

func TestTheTimeToReconnectIsBounded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"2000": 2 * time.Second, "0": 0, "4000000000": time.Minute, "-1": 0, "+5": 0, "2s": 0, "99999999999999999999": 0,
	} {
		r := newEventReader(strings.NewReader("retry: " + text + "\ndata: x\n\n"))
		if _, err := r.next(); err != nil || r.retry != want {
			t.Errorf("%s: %v, want %v; %v", text, r.retry, want, err)
		}
	}
}

// endless is a stream without an end of line.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}

func TestAnEventWithoutAnEndIsGivenUp(t *testing.T) {
	t.Parallel()
	in := &endless{}
	if _, err := newEventReader(in).next(); !errors.Is(err, errEventTooLarge) || in.read > 2*maxEvent {
		t.Errorf("%v after %d bytes", err, in.read)
	}
	lines := strings.NewReader(strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 2*maxEvent/1000))
	if _, err := newEventReader(lines).next(); !errors.Is(err, errEventTooLarge) {
		t.Errorf("many lines: %v", err)
	}
	calm := strings.NewReader(strings.Repeat(": still here\n\n", maxEvent/10) + "data: x\n\n")
	if e, err := newEventReader(calm).next(); err != nil || string(e.data) != "x" {
		t.Errorf("after many comments: %q, %v", e.data, err)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("event: end\r\nid: 1\ndata: {}\r\rretry: 7\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		whole, bytewise := newEventReader(strings.NewReader(text)), newEventReader(iotest.OneByteReader(strings.NewReader(text)))
		for {
			a, errA := whole.next()
			b, errB := bytewise.next()
			if a.name != b.name || string(a.data) != string(b.data) || (errA == nil) != (errB == nil) || whole.lastID != bytewise.lastID {
				t.Fatalf("%q depends on how it arrives", text)
			}
			if errA != nil {
				return
			}
		}
	})
}
