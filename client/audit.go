package client

import (
	"context"
	"iter"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Types of the audit log.
type (
	AuditRecord = v1.AuditRecord
	AuditPage   = v1.AuditPage
)

// AuditQuery selects records of the audit log; the zero AuditQuery selects all.
type AuditQuery struct {
	Event       string // accepted, change, refused or finished
	Application string // authenticated or claimed
	Business    string
	Task        procfleet.TaskID
	// Since starts with the first record that was stored at or after this time.
	Since time.Time
	// After starts after the page with this Next.
	After string
	// PageSize is the number of records per request, 1 to 1000; zero means 1000.
	PageSize int
}

// AuditPage returns one page of the audit log, oldest first. With a selective query it may be
// short or empty although More is set.
func (c *Client) AuditPage(ctx context.Context, q AuditQuery) (AuditPage, error) {
	parameters := map[string]string{
		"event": q.Event, "application": q.Application, "business": q.Business, "task": string(q.Task), "since": moment(q.Since),
	}
	var page AuditPage
	err := c.do(ctx, get(Query{PageSize: q.PageSize, Cursor: q.After}.path("/v1/audit", "after", parameters)), &page)
	return page, err
}

// Audit yields the records of the audit log, oldest first. It ends after the last existing
// record, or after the first error.
func (c *Client) Audit(ctx context.Context, q AuditQuery) iter.Seq2[AuditRecord, error] {
	return c.audit(ctx, q, nil)
}

// FollowAudit yields records like [Client.Audit], and then new records, which it polls at the
// interval every, until ctx ends.
func (c *Client) FollowAudit(ctx context.Context, q AuditQuery, every time.Duration) iter.Seq2[AuditRecord, error] {
	return c.audit(ctx, q, func() error { return sleep(ctx, every, nil) })
}

func (c *Client) audit(ctx context.Context, q AuditQuery, wait func() error) iter.Seq2[AuditRecord, error] {
	return func(yield func(AuditRecord, error) bool) {
		for {
			page, err := c.AuditPage(ctx, q)
			for i := range page.Records {
				if !yield(page.Records[i], nil) {
					return
				}
			}
			if q.After = page.Next; err == nil && !page.More {
				if wait == nil {
					return
				}
				err = wait()
			}
			if err != nil {
				yield(AuditRecord{}, err)
				return
			}
		}
	}
}
