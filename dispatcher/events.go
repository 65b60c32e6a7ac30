package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// HostEvents reads what agents told.
type HostEvents interface {
	HostEvents(ctx context.Context, q bus.HostEventQuery) (bus.HostEventPage, error)
}

func (e *exchange) listEvents(ctx context.Context, use dialect.ListEvents, in *dialect.Request) error {
	p, err := use.Decode(in)
	if err != nil {
		return err
	}
	if err := e.who.may("", apps.Reading); err != nil {
		return err
	}
	if e.api.cfg.Events == nil {
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read what agents tell", RetryAfter: retryAway}
	}
	page, err := e.api.cfg.Events.HostEvents(ctx, bus.HostEventQuery{
		Host: p.Host, Namespace: p.Namespace, Kind: p.Kind, Since: p.Since, After: p.After, Newest: p.Newest, Limit: p.Limit,
	})
	if err != nil {
		if errors.Is(err, bus.ErrAway) {
			return &dialect.Error{Kind: dialect.Unavailable, Problem: "what agents told cannot be read now; try again later", RetryAfter: retryAway}
		}
		return fmt.Errorf("list events: %w", err)
	}
	e.api.measures.eventsRefused(ctx, page.Refused)
	e.reply(use.Encode(dialect.Events{Events: page.Events, Next: page.Next, More: page.More}))
	return nil
}
