package client

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// EventQuery selects from what agents told; the zero EventQuery is the newest.
type EventQuery struct {
	Host            procfleet.Host // zero: all
	Namespace, Kind string         // empty: all
	// Since leaves out what the server received before, and begins there.
	Since time.Time
	// After goes on behind the page whose Next it was; "0" begins with the
	// oldest.
	After string
	// PageSize is how many the server is asked for at a time, 1 to 1000; zero
	// is 1000.
	PageSize int
}

func (q *EventQuery) path() string {
	size := q.PageSize
	if size == 0 {
		size = LargestPage
	}
	values := url.Values{"limit": {strconv.Itoa(size)}}
	set := func(name, value string) {
		if value != "" {
			values.Set(name, value)
		}
	}
	set("host", q.Host.String())
	set("namespace", q.Namespace)
	set("kind", q.Kind)
	set("after", q.After)
	if !q.Since.IsZero() {
		set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	return "/v1/events?" + values.Encode()
}

// EventPage is part of what agents told, the oldest first.
type EventPage struct {
	Events []procfleet.HostEvent `json:"events"`
	// Next is the After that goes on from here, also if there is nothing more
	// yet; More says that it pays to go on at once.
	Next string `json:"next"`
	More bool   `json:"more"`
}

// EventPage returns one page of events. Among many that are not asked for it
// may be short, or empty, and have More.
func (c *Client) EventPage(ctx context.Context, q EventQuery) (EventPage, error) {
	var page EventPage
	err := c.do(ctx, get(q.path()), &page)
	return page, err
}

// Events yields the newest events, or all from where the query begins, and
// ends with those that there are now, or after the first error.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[procfleet.HostEvent, error] {
	return c.events(ctx, q, nil)
}

// FollowEvents is Events that goes on with what comes then, for which it asks
// in the given intervals, until ctx ends.
func (c *Client) FollowEvents(ctx context.Context, q EventQuery, every time.Duration) iter.Seq2[procfleet.HostEvent, error] {
	return c.events(ctx, q, func() error { return sleep(ctx, every, nil) })
}

// events reads page after page. Where there is nothing more yet it waits, or
// ends if wait is nil.
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
