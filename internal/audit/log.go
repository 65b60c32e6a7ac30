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

	"github.com/procfleet/procfleet"
)

// ErrNotKept means that no place confirmed a record. It may be there all the
// same.
var ErrNotKept = errors.New("audit: the record is not known to be kept")

// Line is a record as it is kept.
type Line struct {
	ID    string
	Event Event
	JSON  []byte // without the end of the line
}

// Place keeps records.
type Place interface {
	// Keep keeps some records, in their order, and returns when all of them
	// are durable. If nobody waits for that they need not be synced. After an
	// error some of them may be there. It is called from one goroutine.
	Keep(ctx context.Context, lines []Line, awaited bool) error
	// Name is that of the place in logs and metrics.
	Name() string
	// HasEnds reports whether the place has the ends of tasks already, as the
	// events that say so: then it is not given records of them.
	HasEnds() bool
}

// Config is what a log is made of. Without a place it keeps nothing.
type Config struct {
	// Places are where each record goes.
	Places []Place
	// Required says that nothing may be done without its record.
	Required bool
	Log      logrus.FieldLogger // required
	Meter    metric.Meter       // required
}

// Log hands records to the places. Its methods may be called on nil, which
// keeps nothing, and concurrently.
type Log struct {
	cfg    Config
	places []*writer
	files  []*writer // the places without the ends of tasks
	counts *counts

	strangers, callers refusals

	mu     sync.RWMutex // held to read while a record is handed over
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
	for _, place := range cfg.Places {
		w := &writer{place: place, queue: make(chan *entry, queued), log: l}
		l.places = append(l.places, w)
		if !place.HasEnds() {
			l.files = append(l.files, w)
		}
		l.wg.Go(w.run)
	}
	l.wg.Go(l.tellRepeats)
	return l, nil
}

// Close tells what was counted and not told yet, and returns when the places
// have had their try at everything. What comes later is lost.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.sumUp()
	l.mu.Lock()
	l.closed = true
	for _, w := range l.places {
		close(w.queue)
	}
	l.mu.Unlock()
	close(l.stop)
	l.wg.Wait()
}

// Require keeps a record without which nothing may be done. If the log is
// required it waits until the record is durable, and the error wraps
// [ErrNotKept]; else it does not wait, and is nil.
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

// Keep waits until a record is durable, or not to be had: then it is an error,
// which wraps [ErrNotKept], only if the log is required.
func (l *Log) Keep(ctx context.Context, r Record) error {
	if l == nil {
		return nil
	}
	return l.ifRequired(l.await(ctx, r))
}

// KeepEnd is [Log.Keep] for the end of a task whose event was published. The
// returned function waits. It returns at once if a place has the event.
func (l *Log) KeepEnd(ctx context.Context, t *procfleet.Task) (wait func() error) {
	if l == nil || len(l.files) == 0 {
		return func() error { return nil }
	}
	if len(l.files) < len(l.places) {
		l.handOver(OfEnd(t), false, l.files)
		return func() error { return nil }
	}
	e := l.handOver(OfEnd(t), true, l.files)
	return func() error { return l.ifRequired(e.await(ctx)) }
}

func (l *Log) ifRequired(err error) error {
	if l.cfg.Required {
		return err
	}
	return nil
}

// Note keeps a record soon.
func (l *Log) Note(r Record) {
	if l == nil {
		return
	}
	l.handOver(r, false, l.places)
}

func (l *Log) await(ctx context.Context, r Record) error {
	if len(l.places) == 0 {
		return nil
	}
	return l.handOver(r, true, l.places).await(ctx)
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
	errBehind = errors.New("too many records wait for it")
	errClosed = errors.New("the log is closed")
)

// handOver gives a record to those of the places that have room for it.
func (l *Log) handOver(r Record, awaited bool, places []*writer) *entry {
	r.bounded()
	e := &entry{Line: Line{ID: r.ID, Event: r.Event}, awaited: awaited, kept: make(chan error, 1)}
	e.left.Store(int32(len(places))) //nolint:gosec // a handful of places
	var err error
	if e.JSON, err = json.Marshal(&r); err != nil {
		l.lost(err) // a bug: a Record has nothing that JSON cannot say
		e.kept <- err
		return e
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, w := range places {
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

// lost tells that a record is nowhere.
func (l *Log) lost(err error) {
	l.counts.lost.Add(context.Background(), 1)
	if l.counts.said.due(time.Now()) {
		l.cfg.Log.WithError(err).Error("audit records lost")
	}
}

// entry is a record on its way into the places.
type entry struct {
	Line
	awaited bool
	kept    chan error // has room for the one answer that counts
	left    atomic.Int32
	durable atomic.Bool
}

// oncePer keeps a message that repeats itself from filling the log.
type oncePer struct{ last atomic.Int64 }

// complainEvery is how often the same trouble is written about.
const complainEvery = 10 * time.Second

// due reports whether the message may be written now.
func (o *oncePer) due(now time.Time) bool {
	last := o.last.Load()
	return now.UnixNano()-last >= int64(complainEvery) && o.last.CompareAndSwap(last, now.UnixNano())
}
