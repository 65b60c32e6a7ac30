package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Freeze freezes processes on hosts; at least one host is required.
func (c *Client) Freeze(ctx context.Context, f Freezing, on Targets) (Frozen, error) {
	if on.Count() == 0 {
		return Frozen{}, errNoHosts
	}
	return c.freeze(ctx, f, on)
}

// FreezeEverywhere freezes a namespace on all hosts. business is as in [Targets].
func (c *Client) FreezeEverywhere(ctx context.Context, f Freezing, business string) (Frozen, error) {
	if f.Namespace == "" {
		return Frozen{}, errNoNamespace
	}
	return c.freeze(ctx, f, Targets{Business: business})
}

// Errors instead of defaults: an omitted scope must not widen a freeze.
var (
	errNoHosts     = errors.New("no hosts given; to freeze or lift everywhere, use FreezeEverywhere or LiftEverywhere")
	errNoNamespace = errors.New("no namespace given; one is required")
)

func (c *Client) freeze(ctx context.Context, f Freezing, on Targets) (Frozen, error) {
	var answer Frozen
	body := v1.FreezeRequest{Freezing: f, Targets: on}
	err := c.sendFor(ctx, on.Count(), http.MethodPut, "/v1/freezes", body, &answer, func() int { return len(answer.Results) })
	return answer, err
}

// Lift ends freezes on hosts; at least one host is required. It ends the freeze of
// a namespace, or, without a namespace, the freeze of the whole host. Freezes of
// wider or narrower scope remain.
func (c *Client) Lift(ctx context.Context, namespace string, on Targets) (Lifted, error) {
	if on.Count() == 0 {
		return Lifted{}, errNoHosts
	}
	return c.lift(ctx, namespace, on)
}

// LiftEverywhere ends a freeze made with [Client.FreezeEverywhere].
func (c *Client) LiftEverywhere(ctx context.Context, namespace, business string) (Lifted, error) {
	if namespace == "" {
		return Lifted{}, errNoNamespace
	}
	return c.lift(ctx, namespace, Targets{Business: business})
}

func (c *Client) lift(ctx context.Context, namespace string, on Targets) (Lifted, error) {
	var answer Lifted
	body := v1.LiftRequest{Namespace: namespace, Targets: on}
	err := c.sendFor(ctx, on.Count(), http.MethodDelete, "/v1/freezes", body, &answer, func() int { return len(answer.Results) })
	return answer, err
}

// Freezes yields all freezes: first the freezes of all hosts, then by cloud area and
// address. It ends after the first error.
func (c *Client) Freezes(ctx context.Context, q Query) iter.Seq2[Freeze, error] {
	return all(q, func(q Query) (Page[Freeze], error) { return c.FreezePage(ctx, q) })
}

// FreezePage returns one page of [Client.Freezes].
func (c *Client) FreezePage(ctx context.Context, q Query) (Page[Freeze], error) {
	var answer v1.FreezePage
	err := c.do(ctx, get(q.path("/v1/freezes", "cursor", nil)), &answer)
	return Page[Freeze]{answer.Freezes, answer.Next}, err
}

// EventQuery selects host events; the zero EventQuery selects the newest.
type EventQuery struct {
	Host            procfleet.Host // zero: all hosts
	Namespace, Kind string         // empty: all namespaces, all kinds
	// Since starts with the first event that the server received at or after this time.
	Since time.Time
	// After starts after the page with this Next; "0" starts with the oldest
	// event.
	After string
	// PageSize is the number of events per request, 1 to 1000; zero means 1000.
	PageSize int
}

func (q *EventQuery) path() string {
	parameters := map[string]string{"host": q.Host.String(), "namespace": q.Namespace, "kind": q.Kind}
	if !q.Since.IsZero() {
		parameters["since"] = q.Since.UTC().Format(time.RFC3339Nano)
	}
	return Query{PageSize: q.PageSize, Cursor: q.After}.path("/v1/events", "after", parameters)
}

// EventPage returns one page of events. With a selective query, it may be short or
// empty although More is set.
func (c *Client) EventPage(ctx context.Context, q EventQuery) (EventPage, error) {
	var page EventPage
	err := c.do(ctx, get(q.path()), &page)
	return page, err
}

// Events yields the newest events, or all events from the start of the query. It
// ends after the last existing event, or after the first error.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[procfleet.HostEvent, error] {
	return c.events(ctx, q, nil)
}

// FollowEvents yields events like [Client.Events], and then new events, which it
// polls at the interval every, until ctx ends.
func (c *Client) FollowEvents(ctx context.Context, q EventQuery, every time.Duration) iter.Seq2[procfleet.HostEvent, error] {
	return c.events(ctx, q, func() error { return sleep(ctx, every, nil) })
}

// events reads pages until an error. After the last event it calls wait, or ends if
// wait is nil.
func (c *Client) events(ctx context.Context, q EventQuery, wait func() error) iter.Seq2[procfleet.HostEvent, error] {
	return func(yield func(procfleet.HostEvent, error) bool) {
		for {
			page, err := c.EventPage(ctx, q)
			for i := range page.Events {
				if !yield(page.Events[i], nil) {
					return
				}
			}
			if err == nil && !page.More {
				if wait == nil {
					return
				}
				err = wait()
			}
			if err != nil {
				yield(procfleet.HostEvent{}, err)
				return
			}
			q.After = page.Next
		}
	}
}
