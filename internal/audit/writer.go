package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	// queued is the capacity of a sink's queue, batched the maximum number of
	// records per call of Keep.
	queued  = 8192
	batched = 512
	// keepTimeout limits one attempt to store a batch.
	keepTimeout = 10 * time.Second
)

// writer stores the queued records in one sink, in batches: while one batch is
// being synced, the next is collected.
type writer struct {
	sink   Sink
	queue  chan *entry
	log    *Log
	failed bool // the last batch failed
	logged oncePer
}

func (w *writer) run() {
	batch := make([]*entry, 0, batched)
	lines := make([]Line, 0, batched)
	for first := range w.queue {
		batch = append(batch[:0], first)
		for len(batch) < batched && len(w.queue) > 0 {
			if e, ok := <-w.queue; ok {
				batch = append(batch, e)
			}
		}
		lines = lines[:0]
		awaited := false
		for _, e := range batch {
			lines = append(lines, e.Line)
			awaited = awaited || e.awaited
		}
		err := w.keep(lines, awaited)
		for _, e := range batch {
			w.settle(e, err)
		}
	}
}

func (w *writer) keep(lines []Line, awaited bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	err := w.sink.Keep(ctx, lines, awaited)
	log := w.log.cfg.Log.WithField("place", w.sink.Name())
	switch {
	case err != nil && w.logged.due(time.Now()):
		log.WithError(err).Error("audit records not stored")
	case err == nil && w.failed:
		log.Info("audit writes resumed")
	}
	w.failed = err != nil
	return err
}

// settle sets the result of a record in this sink. The first success makes the
// record durable; after a failure in every sink it is lost.
func (w *writer) settle(e *entry, err error) {
	w.log.counts.record(w.sink.Name(), err)
	if err == nil && !e.durable.Swap(true) {
		e.kept <- nil
	}
	if e.left.Add(-1) == 0 && !e.durable.Load() {
		w.log.lost(err)
		e.kept <- err
	}
}

// counts holds the metrics of the audit log.
type counts struct {
	records metric.Int64Counter
	lost    metric.Int64Counter
	logged  oncePer
}

func newCounts(meter metric.Meter) (*counts, error) {
	var c counts
	var errs [2]error
	c.records, errs[0] = meter.Int64Counter("procfleet_audit_records",
		metric.WithDescription("Audit records, by sink and whether the sink stored them."))
	c.lost, errs[1] = meter.Int64Counter("procfleet_audit_lost_records",
		metric.WithDescription("Audit records that no sink stored."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("audit: metrics: %w", err)
	}
	c.lost.Add(context.Background(), 0) // the series must exist before the first loss
	return &c, nil
}

func (c *counts) record(sink string, err error) {
	outcome := "kept"
	if err != nil {
		outcome = "failed"
	}
	c.records.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("place", sink), attribute.String("outcome", outcome)))
}
