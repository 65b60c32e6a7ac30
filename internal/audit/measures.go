package audit

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// counts is what is counted of records.
type counts struct {
	records metric.Int64Counter
	lost    metric.Int64Counter
	said    oncePer
}

func newCounts(meter metric.Meter) (*counts, error) {
	var c counts
	var errs [2]error
	c.records, errs[0] = meter.Int64Counter("procfleet_audit_records",
		metric.WithDescription("Records of the audit log, by place and whether that confirmed to have them."))
	c.lost, errs[1] = meter.Int64Counter("procfleet_audit_lost_records",
		metric.WithDescription("Records of the audit log that no place confirmed to have."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("audit: metrics: %w", err)
	}
	c.lost.Add(context.Background(), 0) // it is there before it grows
	return &c, nil
}

func (c *counts) record(place string, err error) {
	outcome := "kept"
	if err != nil {
		outcome = "failed"
	}
	c.records.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("place", place), attribute.String("outcome", outcome)))
}
