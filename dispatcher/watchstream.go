package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// The parts of an event stream other than the data of events.
const (
	streamBegin   = "retry: 2000\n\n" // milliseconds after which a client reconnects
	streamAlive   = ": still here\n\n"
	eventSnapshot = "event: snapshot\n"
	eventProgress = "event: progress\n"
	eventEnd      = "event: end\n"
)

// lastWrite is the timeout of a write that is in progress when the dispatcher stops.
const lastWrite = time.Second

// watchRequest is a request for the events of a task.
type watchRequest struct {
	dialect.WatchedTask
	encode encodeTask
}

func (*exchange) decodeWatch(_ context.Context, codec dialect.Watch, in *dialect.Request) (watchRequest, error) {
	wanted, err := codec.Decode(in)
	return watchRequest{wanted, codec.Encode}, err
}

// joined is the topic that a watcher has joined and must leave, with the event that was
// current at that time.
type joined struct {
	*topic
	now *event
}

// joinWatch joins the topic of a task that the caller may read.
func (e *exchange) joinWatch(ctx context.Context, wanted *watchRequest) (joined, error) {
	e.release() // release the body's memory before the long-running stream
	t, err := e.api.watches.join(topicKey{e.call.Name, wanted.Task}, wanted.encode)
	if err != nil {
		return joined{}, about(wanted.Task, err)
	}
	now, err := t.fresh(ctx)
	if err == nil {
		err = e.who.MayRead(&now.task)
	}
	if err != nil {
		e.api.watches.leave(t)
		return joined{}, about(wanted.Task, err)
	}
	return joined{t, now}, nil
}

// watch streams the events of a task until the task is over.
func (e *exchange) watch(_ context.Context, _ dialect.Watch, wanted *watchRequest, t joined) error {
	defer e.api.watches.leave(t.topic)
	now := t.now
	if now.over && now.id == wanted.LastEventID {
		e.w.Header().Set("Cache-Control", "no-store")
		e.w.WriteHeader(http.StatusNoContent) // on 204 browsers do not reconnect
		return nil
	}
	s := &stream{
		w: e.w, control: http.NewResponseController(e.w), timeout: e.api.cfg.Timeouts.Watcher,
		seen: wanted.LastEventID, resumed: now.id == wanted.LastEventID,
		permitted: func() bool { return e.api.authenticator.StillReads(&e.who, &now.task) },
	}
	s.begin()
	err := s.run(e.r.Context(), t.topic)
	if errors.Is(err, os.ErrDeadlineExceeded) && t.hub.life.Err() == nil {
		e.api.metrics.slowWatchers.Add(e.r.Context(), 1)
		e.log().WithField("task", wanted.Task).Warn("slow watcher dropped")
	}
	return nil // a write error means that the watcher has disconnected
}

// stream is the response to one watcher.
type stream struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	timeout   time.Duration // timeout of one write
	seen      string        // id of the last event that the watcher received
	resumed   bool          // the watcher already received an event of this task, so it needs no snapshot
	permitted func() bool   // checked before each event, because the application's permission may be revoked
}

// begin sends the header. From here on each write has its own timeout instead of the
// request's timeouts.
func (s *stream) begin() {
	// Ignore the error: a writer without deadlines can still stream.
	_ = s.control.SetReadDeadline(time.Time{})
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	header.Set("X-Content-Type-Options", "nosniff")
	s.w.WriteHeader(http.StatusOK)
}

// run sends events until the task is over, no more events follow, the watcher may no
// longer read the task, the dispatcher stops, or ctx ends. It returns an error only if
// a write failed.
func (s *stream) run(ctx context.Context, t *topic) error {
	if err := s.send(streamBegin, nil); err != nil {
		return err
	}
	defer s.endWith(t.hub.life)()
	keepAlive := time.NewTicker(t.hub.timing.keepAlive)
	defer keepAlive.Stop()
	for {
		newest, published, ended := t.newest()
		if !s.permitted() {
			return nil // the client reconnects and receives the rejection
		}
		if newest.id != s.seen {
			if err := s.send(s.name(newest), newest.text); err != nil {
				return err
			}
			s.seen, s.resumed = newest.id, true
		}
		if newest.over || ended {
			return nil
		}
		select {
		case <-published:
		case <-keepAlive.C:
			if err := s.send(streamAlive, nil); err != nil {
				return err
			}
		case <-t.hub.life.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// endWith bounds the write that is in progress when the dispatcher stops: a slow reader must not
// delay that. The caller calls stop.
func (s *stream) endWith(life context.Context) (stop func() bool) {
	return context.AfterFunc(life, func() { _ = s.control.SetWriteDeadline(time.Now().Add(lastWrite)) })
}

func (s *stream) name(e *event) string {
	switch {
	case e.over:
		return eventEnd
	case s.resumed:
		return eventProgress
	}
	return eventSnapshot
}

// send writes and flushes one event. The write deadline remains set for the server's
// last write at the end of the stream.
func (s *stream) send(head string, text []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(s.timeout))
	if _, err := s.w.Write([]byte(head)); err != nil {
		return err
	}
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}
