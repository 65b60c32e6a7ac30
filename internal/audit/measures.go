package audit

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// counts are the metrics of the audit log.
type counts struct {
	records metric.Int64Counter
	lost    metric.Int64Counter
	said    oncePer
}

func newCounts(meter metric.Meter) (*counts, error) {
	var c counts
	var errs [2]error
	c.records, errs[0] = meter.Int64Counter("procfleet_audit_records",
		metric.WithDescription("Records of the audit log, by sink and whether that confirmed to have them."))
	c.lost, errs[1] = meter.Int64Counter("procfleet_audit_lost_records",
		metric.WithDescription("Records of the audit log that no sink confirmed to have."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("audit: metrics: %w", err)
	}
	c.lost.Add(context.Background(), 0) // so that the series begins at zero
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
