package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"mime"
	"net/http"
	"time"

	"github.com/procfleet/procfleet"
)

const (
	// firstDataTimeout limits the wait for the first data of a stream, which the server
	// sends at once, and idleTimeout the time without data later; the server sends
	// data at least every 15 s.
	firstDataTimeout = 15 * time.Second
	idleTimeout      = 45 * time.Second
	// maxEmpty is the number of consecutive streams without data, from a server
	// that replies to other requests, after which Watch falls back to polling.
	maxEmpty = 3
	// reconnectAfter is the pause after a broken stream, unless the server sets
	// another pause.
	reconnectAfter = 2 * time.Second

	firstPoll   = 50 * time.Millisecond
	slowestPoll = time.Second
)

// ErrNoEvents is passed to [Config.Trouble] when Watch falls back to polling: the
// server does not support events, or a proxy delays them.
var ErrNoEvents = errors.New("no events received; polling the task instead")

// Watch yields the current task, and then the task whenever its state or its
// counters have changed, until the task is done. It reads the server's event
// stream, and reconnects and resumes when the stream breaks or is idle. Without
// events it falls back to polling. It ends after the first error, such as
// [ErrNotFound], the end of ctx, or the end of [Config.Patience].
func (c *Client) Watch(ctx context.Context, id procfleet.TaskID) iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		w := watch{c: c, id: id, yield: yield}
		if err := w.run(ctx); err != nil && !errors.Is(err, errEnded) {
			yield(Task{}, err)
		}
	}
}

// Wait returns a task once it is done, with or without failed items; see
// [Task.Succeeded]. It returns an error for the same reasons as Watch, together
// with the last state of the task that it received.
func (c *Client) Wait(ctx context.Context, id procfleet.TaskID) (Task, error) {
	var last Task
	for t, err := range c.Watch(ctx, id) {
		if err != nil {
			return last, err
		}
		last = t
	}
	return last, nil
}

// errEnded means that the task is done, or that the caller has ended the loop.
var errEnded = errors.New("watch ended")

// watch is the state of one call of Watch.
type watch struct {
	c     *Client
	id    procfleet.TaskID
	yield func(Task, error) bool
	last  *Task // last yielded task

	lastEvent string        // id of the last event
	reconnect time.Duration // pause set by the server; zero if not set
}

func (w *watch) run(ctx context.Context) error {
	var o outage
	for empty := 0; empty < maxEmpty; {
		received, failure := w.stream(ctx)
		switch {
		case errors.Is(failure, errEnded):
			return nil
		case ctx.Err() != nil:
			return ended(ctx, nil)
		case received:
			o, empty = outage{}, 0
		default:
			// Find out whether the server, only the stream, or the task is unavailable.
			err := w.query(ctx)
			switch {
			case err == nil && !retryable(failure):
				empty = maxEmpty
				continue
			case err == nil:
				o = outage{}
				empty++
			case !retryable(err):
				return err
			default:
				if err := w.c.pause(ctx, &o, err); err != nil {
					return err
				}
				continue
			}
		}
		if err := sleep(ctx, jitter(cmp.Or(w.reconnect, reconnectAfter)), failure); err != nil {
			return err
		}
	}
	w.c.trouble(ErrNoEvents)
	return w.poll(ctx)
}

// query requests the task once and yields it if it has changed.
func (w *watch) query(ctx context.Context) error {
	var t Task
	err := w.c.round(func(server address) error { return w.c.attempt(ctx, server, get(taskPath(w.id)), &t) })
	if err != nil {
		return err
	}
	return w.yieldChange(t)
}

// yieldChange yields a task if it has changed since the last call.
func (w *watch) yieldChange(t Task) error {
	if t.ID != w.id {
		return fmt.Errorf("%w: requested task %s, got %q", ErrBadResponse, w.id, t.ID)
	}
	known := w.last != nil && w.last.State == t.State && maps.Equal(w.last.Counts, t.Counts)
	w.last = &t
	if !known && !w.yield(t, nil) || t.Done() {
		return errEnded
	}
	return nil
}

// stream reads events from one server until the connection ends, and reports
// whether it received any.
func (w *watch) stream(ctx context.Context) (received bool, err error) {
	n := w.c.current.Load()
	received, err = w.read(ctx, w.c.servers[n])
	if retryable(err) {
		w.c.selectNext(n)
	}
	return received, err
}

func (w *watch) read(ctx context.Context, server address) (received bool, err error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stream{watchdog: time.AfterFunc(firstDataTimeout, func() { cancel(errSilent) }), resumed: w.lastEvent != ""}
	defer s.watchdog.Stop()
	if err := s.open(ctx, bounded, w.c, server, taskPath(w.id)+"/events", w.lastEvent); err != nil {
		return false, err
	}
	defer s.body.Close()
	in := newEventReader(s)
	in.lastID = w.lastEvent
	for {
		e, err := in.next()
		w.lastEvent, w.reconnect = in.lastID, in.retry
		if err != nil {
			return s.begun, noAnswer(ctx, bounded, server, err)
		}
		if err := w.handle(e); err != nil {
			return s.begun, err
		}
		s.begin()
	}
}

// handle yields the task of an event. It ignores events with unknown names, so that the
// API can get further ones.
func (w *watch) handle(e event) error {
	switch e.name {
	case "snapshot", "progress", "end":
	default:
		return nil
	}
	var t Task
	if err := json.Unmarshal(e.data, &t); err != nil {
		return fmt.Errorf("%w: event %q: %s", ErrBadResponse, e.name, excerpt(err.Error()))
	}
	return w.yieldChange(t)
}

// errSilent is the error for an idle stream.
var errSilent = errors.New("event stream idle for too long")

// stream is the body of an event stream. A new stream begins with its first event;
// other data is no sign of life before, since a proxy may delay events. A resumed
// stream begins with its first byte, because the server sends only keep-alives
// until the task changes.
type stream struct {
	body     io.ReadCloser
	watchdog *time.Timer
	resumed  bool
	begun    bool
}

func (s *stream) begin() {
	if !s.begun {
		s.begun = true
		s.watchdog.Reset(idleTimeout)
	}
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if n > 0 && (s.begun || s.resumed) {
		s.begun = true
		s.watchdog.Reset(idleTimeout)
	}
	return n, err
}

// open requests the events of a path after the last one, "" for none.
func (s *stream) open(ctx, bounded context.Context, c *Client, server address, path, last string) error {
	req, err := c.newRequest(bounded, server, get(path))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", eventStream)
	req.Header.Set("Accept-Encoding", "identity") // a compressing proxy would buffer events
	req.Header.Set("Cache-Control", "no-cache")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := c.streams.Do(req)
	if err != nil {
		return noAnswer(ctx, bounded, server, err)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // an invalid type differs from eventStream
	switch {
	case resp.StatusCode == http.StatusOK && kind == eventStream:
		s.body = resp.Body
		return nil
	case resp.StatusCode == http.StatusNoContent: // the task is already done
		err = &connectionError{server: server, cause: io.EOF}
	case resp.StatusCode/100 == 2:
		err = fmt.Errorf("%s%s: %w: it is %q and no stream of events", server, req.URL.Path, ErrBadResponse, kind)
	default:
		// The status suffices if the body cannot be read.
		data, _ := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		err = refusal(server, resp, data)
	}
	return errors.Join(err, resp.Body.Close())
}

const eventStream = "text/event-stream"

// poll requests the task periodically until it is done.
func (w *watch) poll(ctx context.Context) error {
	for pause := firstPoll; ; pause = min(pause*3/2, slowestPoll) {
		t, err := w.c.Task(ctx, w.id)
		if err != nil {
			return err
		}
		if err := w.yieldChange(t); err != nil {
			return err
		}
		if err := sleep(ctx, pause, nil); err != nil {
			return err
		}
	}
}
