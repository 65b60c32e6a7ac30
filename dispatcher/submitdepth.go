package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/internal/bus"
)

// depthEvery is the pause between looks at the streams of submissions. Every
// dispatcher looks, and all say the same.
const depthEvery = 10 * time.Second

// submitDepth is how many published submissions there are, as of the last look.
type submitDepth struct {
	known           atomic.Bool
	waiting, failed atomic.Int64
}

func (d *submitDepth) register(meter metric.Meter) error {
	gauge := func(name, text string, value *atomic.Int64) error {
		_, err := meter.Int64ObservableGauge("procfleet_dispatcher_submit_"+name, metric.WithDescription(text),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				if d.known.Load() {
					o.Observe(value.Load())
				}
				return nil
			}))
		return err
	}
	err := errors.Join(
		gauge("waiting_messages", "Published submissions that are neither accepted nor failed, put off ones included; the same figure from every dispatcher.", &d.waiting),
		gauge("failed_messages", "Failed submissions that are kept; the same figure from every dispatcher.", &d.failed))
	if err != nil {
		return fmt.Errorf("dispatcher: metrics: %w", err)
	}
	return nil
}

// watch looks until ctx ends. What cannot be looked at has no figure, rather
// than an old one.
func (d *submitDepth) watch(ctx context.Context, b *bus.Bus) {
	for {
		d.look(ctx, b)
		if !pause(ctx, jitter(depthEvery)) {
			return
		}
	}
}

func (d *submitDepth) look(ctx context.Context, b *bus.Bus) {
	ctx, cancel := context.WithTimeout(ctx, depthEvery/2)
	defer cancel()
	waiting, failed, err := b.SubmissionCounts(ctx)
	if err == nil {
		d.waiting.Store(int64(waiting)) //nolint:gosec // a number of messages
		d.failed.Store(int64(failed))   //nolint:gosec // a number of messages
	}
	d.known.Store(err == nil)
}
