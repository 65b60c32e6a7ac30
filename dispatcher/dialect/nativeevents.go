package dialect

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// maxEventKind bounds a kind of events in bytes.
const maxEventKind = 128

// decodeEventPage asks for the newest unless it is said where to begin.
func decodeEventPage(r *Request) (EventPage, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return EventPage{}, err
	}
	p := EventPage{Namespace: r.Query.Get("namespace"), Kind: r.Query.Get("kind"), Newest: true, Limit: limit}
	if host := r.Query.Get("host"); host != "" {
		if p.Host, err = procfleet.ParseHost(host); err != nil {
			return EventPage{}, invalid("host", "%s", err.Error())
		}
	}
	if since := r.Query.Get("since"); since != "" {
		p.Newest = false
		if p.Since, err = time.Parse(time.RFC3339, since); err != nil {
			return EventPage{}, invalid("since", "is not a moment like 2026-11-21T05:35:22Z")
		}
	}
	if after := r.Query.Get("after"); after != "" {
		p.Newest = false
		if p.After, err = strconv.ParseUint(after, 10, 64); err != nil {
			return EventPage{}, invalid("after", "is not the next of a page before")
		}
	}
	if err := errors.Join(tooLong("namespace", p.Namespace, procfleet.MaxKey), tooLong("kind", p.Kind, maxEventKind)); err != nil {
		return EventPage{}, refused(err, same)
	}
	return p, nil
}

func nativeEvents(found Events) Reply {
	page := struct {
		Events []procfleet.HostEvent `json:"events"`
		Next   string                `json:"next"`
		More   bool                  `json:"more"`
	}{found.Events, strconv.FormatUint(found.Next, 10), found.More}
	if page.Events == nil {
		page.Events = []procfleet.HostEvent{}
	}
	return Reply{Status: http.StatusOK, Body: page}
}
