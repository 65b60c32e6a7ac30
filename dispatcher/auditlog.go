package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// AuditLog reads the audit log.
type AuditLog interface {
	AuditPage(ctx context.Context, since time.Time, after bus.AuditPosition, visit func(record []byte) (more bool)) (bus.AuditPosition, error)
}

// maxAuditScan is the maximum number of records that one page reads to find those that the
// query selects.
const maxAuditScan = 10_000

// listAudit returns a page of the records that the caller may read: its own, those of
// businesses that it may read, and all if it may read every business.
func (e *exchange) listAudit(ctx context.Context, q *dialect.AuditQuery, sees func(*v1.AuditRecord) bool) (v1.AuditPage, error) {
	page := v1.AuditPage{Records: []v1.AuditRecord{}}
	if e.api.cfg.AuditLog == nil {
		return page, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read the audit log", RetryAfter: retryUnavailable}
	}
	after, err := auditPosition(q.After)
	if err != nil {
		return page, err
	}
	scanned := 0
	next, err := e.api.cfg.AuditLog.AuditPage(ctx, q.Since, after, func(text []byte) (more bool) {
		var record v1.AuditRecord
		if json.Unmarshal(text, &record) == nil && q.Matches(&record) && sees(&record) {
			page.Records = append(page.Records, record)
		}
		scanned++
		page.More = len(page.Records) == q.Limit || scanned == maxAuditScan
		return !page.More
	})
	switch {
	case errors.Is(err, bus.ErrUnavailable):
		return page, &dialect.Error{Kind: dialect.Unavailable, Problem: "the audit log cannot be read now; try again later", RetryAfter: retryUnavailable}
	case err != nil:
		return page, fmt.Errorf("list audit records: %w", err)
	}
	page.Next = fmt.Sprintf("%d-%d", next.Records, next.Events)
	return page, nil
}

// auditPosition parses the Next of a page; "" is the beginning.
func auditPosition(text string) (p bus.AuditPosition, err error) {
	if text == "" {
		return p, nil
	}
	if n, err := fmt.Sscanf(text, "%d-%d", &p.Records, &p.Events); err != nil || n != 2 || text != fmt.Sprintf("%d-%d", p.Records, p.Events) {
		return p, &dialect.Error{Kind: dialect.InvalidField, Field: "after", Problem: "is not the next of a page before"}
	}
	return p, nil
}

func (e *exchange) visibleRecords(context.Context, *dialect.AuditQuery) (sees func(*v1.AuditRecord) bool, err error) {
	return func(r *v1.AuditRecord) bool {
		own := r.Application != "" && r.Application == e.who.Application
		return own || e.who.May(r.Business, apps.Reading) == nil
	}, nil
}
