package dialect

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// nativeScope is what a body names to freeze or lift.
type nativeScope struct {
	nativeTargets
	Namespace string `json:"namespace"`
	Business  string `json:"business"`
}

// freezing reads what body names, which was decoded into s. A list of hosts
// that is empty or null is a mistake: it must not become every host.
func (s *nativeScope) freezing(body []byte) (Freezing, error) {
	q := Freezing{Business: s.Business, Namespace: s.Namespace}
	err := error(nil)
	if s.Namespace != "" {
		err = checkNamespace(s.Namespace, s.Business)
	} else if long := tooLong("business", s.Business, procfleet.MaxKey); long != nil {
		err = refused(long, same)
	}
	if err != nil {
		return Freezing{}, err
	}
	if s.Hosts == nil && s.Agents == nil {
		var lists struct{ Hosts, Agents json.RawMessage }
		if err := json.Unmarshal(body, &lists); err != nil {
			return Freezing{}, decodeError(err, "")
		}
		if lists.Hosts != nil || lists.Agents != nil {
			return Freezing{}, invalid("hosts", "is null, which does not mean everywhere; name hosts, or leave hosts and agents out")
		}
		if s.Namespace == "" {
			return Freezing{}, invalid("hosts", "is not there, and no namespace either; name hosts, a namespace, or a namespace on hosts")
		}
		return q, nil
	}
	q.Targets, err = s.some(0)
	return q, err
}

func decodeNativeFreeze(r *Request) (Freezing, error) {
	var params struct {
		nativeScope
		TTL    json.RawMessage `json:"ttl"`
		Reason string          `json:"reason"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return Freezing{}, err
	}
	q, err := params.freezing(r.Body)
	if err != nil {
		return Freezing{}, err
	}
	if params.TTL == nil || string(params.TTL) == "null" {
		return Freezing{}, invalid("ttl", "is required: how long, for example 30m; %s to %s", catalog.MinFreeze, catalog.MaxFreeze)
	}
	if err := q.TTL.UnmarshalJSON(params.TTL); err != nil {
		return Freezing{}, invalid("ttl", "%s", err.Error())
	}
	q.Reason = params.Reason
	if err := (catalog.Freezing{TTL: q.TTL.Std(), Reason: q.Reason}).Validate(); err != nil {
		return Freezing{}, refused(err, same)
	}
	return q, nil
}

func decodeNativeLift(r *Request) (Freezing, error) {
	var params nativeScope
	if err := decodeNativeBody(r, &params); err != nil {
		return Freezing{}, err
	}
	q, err := params.freezing(r.Body)
	q.Lift = err == nil
	return q, err
}

func nativeFrozen(_ *Freezing, done Frozen, _ string) Reply {
	answer := struct {
		Until   *time.Time      `json:"until"` // null if nothing was frozen
		Results []nativeOutcome `json:"results"`
	}{Results: newNativeOutcomes(done.Outcomes)}
	if !done.Until.IsZero() {
		answer.Until = &done.Until
	}
	return Reply{Status: http.StatusOK, Body: answer}
}

func nativeLifted(_ *Freezing, done Frozen, _ string) Reply {
	return Reply{Status: http.StatusOK, Body: struct {
		Lifted  int             `json:"lifted"`
		Results []nativeOutcome `json:"results"`
	}{done.Lifted, newNativeOutcomes(done.Outcomes)}}
}

// A freeze as a cursor is its host, empty for everywhere, a slash, which no
// host has, and its namespace.
const cursorSlash = "/"

func decodeFreezePage(r *Request) (FreezePage, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return FreezePage{}, err
	}
	p := FreezePage{Limit: limit}
	cursor := r.Query.Get("cursor")
	if cursor == "" {
		return p, nil
	}
	host, namespace, found := strings.Cut(cursor, cursorSlash)
	if host != "" {
		p.After.Host, err = procfleet.ParseHost(host)
	}
	p.After.Namespace = namespace
	if err = errors.Join(err, p.After.Validate()); err != nil || !found {
		return FreezePage{}, invalid("cursor", "is not the next of a page before")
	}
	return p, nil
}

// nativeFreeze is a freeze as callers see it.
type nativeFreeze struct {
	Host      string    `json:"host"`                // "" is everywhere
	Namespace string    `json:"namespace,omitempty"` // without one, all of the host
	Until     time.Time `json:"until"`
	Reason    string    `json:"reason"`
	By        string    `json:"by"`
}

func nativeFreezes(p FreezePage, freezes []catalog.Freeze) Reply {
	page := struct {
		Freezes []nativeFreeze `json:"freezes"`
		Next    string         `json:"next"`
	}{Freezes: make([]nativeFreeze, 0, len(freezes))}
	for _, f := range freezes {
		page.Freezes = append(page.Freezes, nativeFreeze{f.Host.String(), f.Namespace, f.Until, f.Reason, f.By})
	}
	if n := len(freezes); n > 0 && n == p.Limit {
		page.Next = freezes[n-1].Host.String() + cursorSlash + freezes[n-1].Namespace
	}
	return Reply{Status: http.StatusOK, Body: page}
}
