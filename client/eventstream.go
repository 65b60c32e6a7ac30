package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// maxEvent is the maximum size of one event in bytes; a task has less than 2 KiB.
const maxEvent = 1 << 20

var errEventTooLarge = errors.New("an event has no end")

// event is one event of a text/event-stream.
type event struct {
	name string
	data []byte
}

// eventReader parses a text/event-stream as the HTML standard defines it: lines end
// with LF, CR or both, unknown fields and comments are ignored, data may have
// several lines, and an incomplete event at the end is dropped.
type eventReader struct {
	in      *bufio.Reader
	afterCR bool // the last line ended with CR: skip an LF that follows
	begun   bool // the byte order mark was skipped
	size    int  // size of the current event

	lastID string        // id of the last event, for Last-Event-ID
	retry  time.Duration // reconnection time set by the server; zero if not set
}

func newEventReader(in io.Reader) *eventReader { return &eventReader{in: bufio.NewReader(in)} }

// next returns the next event with data.
func (r *eventReader) next() (event, error) {
	var e event
	id, dataLines := r.lastID, 0
	for r.size = 0; ; {
		line, err := r.line()
		if err != nil {
			return event{}, err
		}
		if len(line) == 0 {
			r.lastID = id
			if dataLines > 0 {
				return e, nil
			}
			e, r.size = event{}, 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			e.name = string(value)
		case "data":
			if dataLines++; dataLines > 1 {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		case "id":
			if printable(string(value)) { // Last-Event-ID returns the id, so it must be a valid header value
				id = string(value)
			}
		case "retry":
			r.setRetry(string(value))
		}
	}
}

func (r *eventReader) setRetry(text string) {
	const longest = time.Minute
	if ms, err := strconv.ParseUint(text, 10, 32); err == nil && !strings.HasPrefix(text, "+") {
		r.retry = min(time.Duration(ms)*time.Millisecond, longest)
	}
}

// line returns the next line without its line end.
func (r *eventReader) line() ([]byte, error) {
	var line []byte
	for {
		b, err := r.in.ReadByte()
		if err != nil {
			return nil, err
		}
		if b == '\n' && r.afterCR {
			r.afterCR = false
			continue
		}
		if r.afterCR = b == '\r'; r.afterCR || b == '\n' {
			break
		}
		if r.size++; r.size > maxEvent {
			return nil, errEventTooLarge
		}
		line = append(line, b)
	}
	if !r.begun {
		r.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	return line, nil
}
