package web

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"
)

// refresh is the time between two reads of a page with a stream.
const refresh = time.Second

// writeTimeout is the timeout of one write to a stream.
const writeTimeout = 10 * time.Second

// stream sends the content of a page whenever it has changed, as the event "main", and otherwise the
// event "same" once a second, from which the browser learns that the connection works and that what it
// shows is current. The event "problem" says that the page could not be read. The stream ends with the
// event "end" when the viewer is no longer permitted to read the page.
func (v *visit) stream(p *page) {
	c := v.console
	select {
	case c.streams <- struct{}{}:
	default:
		http.Error(v.w, "too many open pages", http.StatusServiceUnavailable)
		return
	}
	c.open.Add(1)
	defer func() { <-c.streams; c.open.Done() }()
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	s := events{w: v.w, control: http.NewResponseController(v.w)}
	s.begin()
	var shown []byte
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		event, text := v.next(ctx, p, &shown)
		if ctx.Err() != nil || s.send(event, text) != nil || event == "end" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// next returns the next event of a stream, and replaces shown, the content that the browser has.
func (v *visit) next(ctx context.Context, p *page, shown *[]byte) (event, text string) {
	content, err := p.load(ctx, v)
	if signedOut(err) {
		return "end", ""
	}
	if err != nil {
		return "problem", v.problem(err).Text
	}
	var now bytes.Buffer
	if err := p.rendered[v.text].ExecuteTemplate(&now, "main", content); err != nil {
		v.console.log.WithError(err).WithField("page", p.name).Error("page not rendered")
		return "end", ""
	}
	if bytes.Equal(now.Bytes(), *shown) {
		return "same", ""
	}
	*shown = now.Bytes()
	return "main", now.String()
}

// events writes server-sent events.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// begin sends the header. From here on each write has its own timeout instead of the request's
// timeouts.
func (s *events) begin() {
	// Ignore the error: a writer without deadlines can still stream.
	_ = s.control.SetReadDeadline(time.Time{})
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

func (s *events) send(event, text string) error {
	var b strings.Builder
	b.WriteString("event: " + event + "\n")
	for line := range strings.Lines(strings.ReplaceAll(text, "\r", "")) { // a CR would end the line as well
		b.WriteString("data: " + strings.TrimSuffix(line, "\n") + "\n")
	}
	if text == "" {
		b.WriteString("data:\n")
	}
	b.WriteString("\n")
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has deadlines
	if _, err := s.w.Write([]byte(b.String())); err != nil {
		return err
	}
	return s.control.Flush()
}
