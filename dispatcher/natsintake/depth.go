package natsintake

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// depthEvery is the interval of measurements. All dispatchers report the same values.
const depthEvery = 10 * time.Second

// depth has the numbers of published submissions at the last measurement.
type depth struct {
	known           atomic.Bool
	waiting, failed atomic.Int64
}

func (d *depth) register(meter metric.Meter) error {
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
		gauge("waiting_messages", "Published submissions that are neither accepted nor failed, including postponed ones; every dispatcher reports the same value.", &d.waiting),
		gauge("failed_messages", "Stored failed submissions; every dispatcher reports the same value.", &d.failed))
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func (in *Intake) measureDepth(ctx context.Context) {
	for {
		in.MeasureDepth(ctx)
		if !pause(ctx, depthEvery) {
			return
		}
	}
}

// MeasureDepth measures once. After an error the gauges report no value.
func (in *Intake) MeasureDepth(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, depthEvery/2)
	defer cancel()
	waiting, failed, err := in.cfg.Bus.SubmissionCounts(ctx)
	if err == nil {
		in.depth.waiting.Store(int64(waiting)) //nolint:gosec // message counts are small
		in.depth.failed.Store(int64(failed))   //nolint:gosec // message counts are small
	}
	in.depth.known.Store(err == nil)
}
