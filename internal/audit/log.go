// Package audit writes the audit log: the caller of each change, whether it was
// accepted, and how its task ended. Records are JSON lines, stored in up to two
// sinks: a file of this process ([File]) and a stream shared by all processes.
//
// A record is durable once one of the sinks has stored it. With a required log, a
// change waits until its record is durable ([Log.Require]); otherwise the log
// delays no call, and reports lost records in the process's log and metrics.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
)

// ErrNotKept means that no sink confirmed a record. A sink may have stored it
// nevertheless.
var ErrNotKept = errors.New("audit: no sink confirmed the record")

// Line is an encoded record.
type Line struct {
	ID    string
	Event Event
	JSON  []byte // encoded record without line break
}

// Sink stores records.
type Sink interface {
	// Keep stores records in order and returns once all of them are durable;
	// without awaited they need not be synced. After an error some of them may
	// be stored. Keep is called from one goroutine.
	Keep(ctx context.Context, lines []Line, awaited bool) error
	// Name returns the name of the sink in logs and metrics.
	Name() string
	// HasTaskEvents reports whether the sink already has the events of transitions and
	// ends of tasks; it then receives no records of them.
	HasTaskEvents() bool
}

// Config configures a log. Without a sink it stores nothing.
type Config struct {
	// Sinks receive every record.
	Sinks []Sink
	// Required makes a change fail if its record cannot be stored.
	Required bool
	Log      logrus.FieldLogger // required
	Meter    metric.Meter       // required
}

// Log sends records to the sinks. It is safe for concurrent use; a nil Log
// stores nothing.
type Log struct {
	cfg    Config
	sinks  []*writer
	files  []*writer // sinks for which HasTaskEvents is false
	counts *counts

	unauthenticated, callers refusals

	mu     sync.RWMutex // read-locked while a record is enqueued
	closed bool
	stop   chan struct{}
	wg     sync.WaitGroup
}

// New returns a log that runs until it is closed.
func New(cfg Config) (*Log, error) {
	counts, err := newCounts(cfg.Meter)
	if err != nil {
		return nil, err
	}
	cfg.Log = cfg.Log.WithField("component", "audit")
	l := &Log{cfg: cfg, counts: counts, stop: make(chan struct{})}
	for _, sink := range cfg.Sinks {
		w := &writer{sink: sink, queue: make(chan *entry, queued), log: l}
		l.sinks = append(l.sinks, w)
		if !sink.HasTaskEvents() {
			l.files = append(l.files, w)
		}
		l.wg.Go(w.run)
	}
	l.wg.Go(l.recordRepeats)
	return l, nil
}

// Close stores the counts of repeated refusals, and returns once the sinks have
// tried to store everything. Later records are lost.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.sumUp()
	l.mu.Lock()
	l.closed = true
	for _, w := range l.sinks {
		close(w.queue)
	}
	l.mu.Unlock()
	close(l.stop)
	l.wg.Wait()
}

// Require stores the record of a change before the change is made. If the log is
// required, it blocks until the record is durable, and a failure wraps
// [ErrNotKept]; otherwise it returns nil without waiting.
func (l *Log) Require(ctx context.Context, r Record) error {
	if l == nil {
		return nil
	}
	if !l.cfg.Required {
		l.Note(r)
		return nil
	}
	return l.await(ctx, r)
}

// Keep blocks until a record is durable or lost. A lost record is an error, which
// wraps [ErrNotKept], only if the log is required.
func (l *Log) Keep(ctx context.Context, r Record) error {
	if l == nil {
		return nil
	}
	return l.ifRequired(l.await(ctx, r))
}

// KeepEvent is [Log.Keep] for a transition or an end of a task whose event was published.
// wait blocks until the record is durable or lost; if a sink has the event, it
// returns at once.
func (l *Log) KeepEvent(ctx context.Context, r Record) (wait func() error) {
	if l == nil || len(l.files) == 0 {
		return func() error { return nil }
	}
	if len(l.files) < len(l.sinks) {
		l.enqueue(r, false, l.files)
		return func() error { return nil }
	}
	e := l.enqueue(r, true, l.files)
	return func() error { return l.ifRequired(e.await(ctx)) }
}

func (l *Log) ifRequired(err error) error {
	if l.cfg.Required {
		return err
	}
	return nil
}

// Note stores a record without waiting.
func (l *Log) Note(r Record) {
	if l == nil {
		return
	}
	l.enqueue(r, false, l.sinks)
}

func (l *Log) await(ctx context.Context, r Record) error {
	if len(l.sinks) == 0 {
		return nil
	}
	return l.enqueue(r, true, l.sinks).await(ctx)
}

func (e *entry) await(ctx context.Context) error {
	select {
	case err := <-e.kept:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotKept, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotKept, context.Cause(ctx))
	}
}

var (
	errBehind = errors.New("queue of audit records is full")
	errClosed = errors.New("audit log is closed")
)

// enqueue adds a record to the queues of sinks that are not full.
func (l *Log) enqueue(r Record, awaited bool, sinks []*writer) *entry {
	r.bounded()
	e := &entry{Line: Line{ID: r.ID, Event: r.Event}, awaited: awaited, kept: make(chan error, 1)}
	e.left.Store(int32(len(sinks))) //nolint:gosec // a handful of sinks
	var err error
	if e.JSON, err = json.Marshal(&r); err != nil {
		l.lost(err) // cannot happen: every Record can be encoded
		e.kept <- err
		return e
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, w := range sinks {
		if l.closed {
			w.settle(e, errClosed)
			continue
		}
		select {
		case w.queue <- e:
		default:
			w.settle(e, errBehind)
		}
	}
	return e
}

// lost logs and counts a record that no sink has stored.
func (l *Log) lost(err error) {
	l.counts.lost.Add(context.Background(), 1)
	if l.counts.logged.due(time.Now()) {
		l.cfg.Log.WithError(err).Error("audit records lost")
	}
}

// entry is a record in the queues of sinks.
type entry struct {
	Line
	awaited bool
	kept    chan error // buffered: receives exactly one result
	left    atomic.Int32
	durable atomic.Bool
}

// oncePer limits how often the same message is logged.
type oncePer struct{ last atomic.Int64 }

// complainEvery is the minimum interval between two log lines of one message.
const complainEvery = 10 * time.Second

func (o *oncePer) due(now time.Time) bool {
	last := o.last.Load()
	return now.UnixNano()-last >= int64(complainEvery) && o.last.CompareAndSwap(last, now.UnixNano())
}
