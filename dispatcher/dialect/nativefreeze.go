package dialect

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// freezing returns the request to freeze or to lift in body, which was decoded into
// scope and hosts. A list of hosts that is empty or null is an error, because it must
// not select every host.
func freezing(body []byte, scope *v1.LiftRequest, hosts []string) (Freezing, error) {
	q := Freezing{Business: scope.Business, Namespace: scope.Namespace}
	err := tooLong("business", scope.Business, procfleet.MaxKey)
	if scope.Namespace != "" {
		err = checkNamespace(scope.Namespace, scope.Business)
	}
	if hosts == nil && scope.Agents == nil {
		var lists struct{ Hosts, Agents json.RawMessage }
		if err := json.Unmarshal(body, &lists); err != nil {
			return Freezing{}, decodeError(err, "")
		}
		if lists.Hosts != nil || lists.Agents != nil {
			err = errors.Join(err, invalid("hosts", "is null, which does not mean everywhere; name hosts, or leave hosts and agents out"))
		} else if scope.Namespace == "" {
			err = errors.Join(err, invalid("hosts", "is not there, and no namespace either; name hosts, a namespace, or a namespace on hosts"))
		}
		return q, err
	}
	var badTargets error
	q.Targets, badTargets = someTargets(hosts, scope.Agents, 0)
	return q, errors.Join(err, badTargets)
}

func decodeNativeFreeze(r *Request) (Freezing, error) {
	var params struct {
		v1.FreezeRequest
		TTL   json.RawMessage `json:"ttl"`
		Hosts []string        `json:"hosts"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return Freezing{}, err
	}
	q, err := freezing(r.Body, &v1.LiftRequest{Namespace: params.Namespace, Targets: params.Targets}, params.Hosts)
	q.Reason = params.Reason
	checked := catalog.Freezing{TTL: catalog.MinFreeze, Reason: q.Reason}
	if params.TTL == nil || string(params.TTL) == "null" {
		err = errors.Join(err, invalid("ttl", "is required: how long, for example 30m; %s to %s", catalog.MinFreeze, catalog.MaxFreeze))
	} else if wrong := q.TTL.UnmarshalJSON(params.TTL); wrong != nil {
		err = errors.Join(err, invalid("ttl", "%s", wrong.Error()))
	} else {
		checked.TTL = q.TTL.Std()
	}
	return q, errors.Join(err, checked.Validate())
}

func decodeNativeLift(r *Request) (Freezing, error) {
	var params struct {
		v1.LiftRequest
		Hosts []string `json:"hosts"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return Freezing{}, err
	}
	q, err := freezing(r.Body, &params.LiftRequest, params.Hosts)
	q.Lift = err == nil
	return q, err
}

func nativeFrozen(_ *Freezing, done Frozen, _ string) Reply {
	answer := v1.Frozen{Results: newNativeOutcomes(done.Outcomes)}
	if !done.Until.IsZero() {
		answer.Until = &done.Until
	}
	return ok(answer)
}

func nativeLifted(_ *Freezing, done Frozen, _ string) Reply {
	return ok(v1.Lifted{Lifted: done.Lifted, Results: newNativeOutcomes(done.Outcomes)})
}

// The cursor of a freeze is <host>/<namespace>. The host is empty for a freeze on all
// hosts, and never contains a slash.
const cursorSlash = "/"

func decodeFreezePage(r *Request) (FreezePage, error) {
	from := queryReader{Request: r}
	p := FreezePage{Limit: from.limit()}
	cursor := r.Query.Get("cursor")
	if cursor == "" {
		return p, from.err
	}
	host, namespace, found := strings.Cut(cursor, cursorSlash)
	var err error
	if host != "" {
		p.After.Host, err = procfleet.ParseHost(host)
	}
	p.After.Namespace = namespace
	if err = errors.Join(err, p.After.Validate()); err != nil || !found {
		from.fail("cursor", "is not the next of a page before")
	}
	return p, from.err
}

func nativeFreezes(p *FreezePage, freezes []catalog.Freeze, _ string) Reply {
	page := v1.FreezePage{Freezes: make([]v1.Freeze, 0, len(freezes))}
	for _, f := range freezes {
		page.Freezes = append(page.Freezes, v1.Freeze{Host: f.Host, Namespace: f.Namespace, Until: f.Until, Reason: f.Reason, By: f.By})
	}
	if n := len(freezes); n > 0 && n == p.Limit {
		page.Next = freezes[n-1].Host.String() + cursorSlash + freezes[n-1].Namespace
	}
	return ok(page)
}

// maxEventKind is the maximum length of an event's kind in bytes.
const maxEventKind = 128

// decodeEventPage decodes a request for events: the newest ones, unless since or after
// is present.
func decodeEventPage(r *Request) (EventPage, error) {
	from := queryReader{Request: r}
	p := EventPage{Namespace: r.Query.Get("namespace"), Kind: r.Query.Get("kind"), Newest: true, Limit: from.limit(), Host: from.host("host")}
	var err error
	if since := r.Query.Get("since"); since != "" {
		p.Newest = false
		if p.Since, err = time.Parse(time.RFC3339, since); err != nil {
			from.fail("since", "is not a moment like 2026-11-21T05:35:22Z")
		}
	}
	if after := r.Query.Get("after"); after != "" {
		p.Newest = false
		if p.After, err = strconv.ParseUint(after, 10, 64); err != nil {
			from.fail("after", "is not the next of a page before")
		}
	}
	return p, errors.Join(from.err, tooLong("namespace", p.Namespace, procfleet.MaxKey), tooLong("kind", p.Kind, maxEventKind))
}

func nativeEvents(_ *EventPage, found Events, _ string) Reply {
	page := v1.EventPage{Events: found.Events, Next: strconv.FormatUint(found.Next, 10), More: found.More}
	if page.Events == nil {
		page.Events = []procfleet.HostEvent{}
	}
	return ok(page)
}
