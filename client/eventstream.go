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

// maxEvent is the most bytes of one event; a task has less than 2 KiB.
const maxEvent = 1 << 20

var errEventTooLarge = errors.New("an event has no end")

// event is one event of a text/event-stream.
type event struct {
	name string
	data []byte
}

// eventReader reads events as the HTML standard describes them: lines that
// end with LF, CR or both, fields of which unknown ones are ignored, comments,
// and data over several lines. An incomplete event at the end is dropped.
type eventReader struct {
	in      *bufio.Reader
	afterCR bool // an LF that follows belongs to the line before
	begun   bool // the byte order mark is behind
	size    int  // of the event that is being read

	lastID string        // of the last event, to go on after it
	retry  time.Duration // what the server wants; zero if it did not say
}

func newEventReader(in io.Reader) *eventReader { return &eventReader{in: bufio.NewReader(in)} }

// next returns the next event that has data.
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
			if printable(string(value)) { // it must fit into a header again
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

// line returns the next line without its end.
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
