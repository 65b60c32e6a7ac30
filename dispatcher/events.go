package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// HostEvents reads what agents told.
type HostEvents interface {
	HostEvents(ctx context.Context, q bus.HostEventQuery) (bus.HostEventPage, error)
}

func (e *exchange) listEvents(ctx context.Context, p *dialect.EventPage, _ string) (dialect.Events, error) {
	if e.api.cfg.Events == nil {
		return dialect.Events{}, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read what agents tell", RetryAfter: retryAway}
	}
	page, err := e.api.cfg.Events.HostEvents(ctx, bus.HostEventQuery{
		Host: p.Host, Namespace: p.Namespace, Kind: p.Kind, Since: p.Since, After: p.After, Newest: p.Newest, Limit: p.Limit,
	})
	if err != nil {
		if errors.Is(err, bus.ErrUnavailable) {
			return dialect.Events{}, &dialect.Error{Kind: dialect.Unavailable, Problem: "what agents told cannot be read now; try again later", RetryAfter: retryAway}
		}
		return dialect.Events{}, fmt.Errorf("list events: %w", err)
	}
	e.api.measures.eventsRefused(ctx, page.Refused)
	return dialect.Events{Events: page.Events, Next: page.Next, More: page.More}, nil
}
