package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// Agents notifies the agents of some hosts, or of all hosts, that their settings
// changed. It must not block. Notifications may be lost.
type Agents interface {
	SettingsChanged(hosts []procfleet.Host) error
}

// freeze freezes scopes, which suspends automatic starts and limits there, or lifts
// their freezes.
func (e *exchange) freeze(ctx context.Context, q *dialect.Freezing, at *targetHosts) (dialect.Frozen, error) {
	scopes := at.scopes(q.Namespace)
	if q.Everywhere() {
		scopes = []catalog.Scope{{Namespace: q.Namespace}}
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	what := "freeze"
	if q.Lift {
		what = "lift freeze"
	}
	if err := e.auditChange(ctx, changeOf(what, q.Business, at.hosts, q.Namespace)); err != nil {
		return dialect.Frozen{}, err
	}
	var done dialect.Frozen
	var err error
	switch {
	case len(scopes) == 0: // no target resolved to a host
		done.Outcomes = outcomesOf(q.Targets, at, success)
	case q.Lift:
		done, err = e.lift(ctx, q, at, scopes)
	default:
		done.Until, err = e.api.store.Freeze(ctx, scopes, catalog.Freezing{TTL: q.TTL.Std(), Reason: q.Reason, By: callerName(&e.who)})
		done.Outcomes = outcomesOf(q.Targets, at, success)
	}
	if err != nil {
		return dialect.Frozen{}, fmt.Errorf("freeze, or lift freezes of, %d scopes: %w", len(scopes), err)
	}
	if len(scopes) > 0 {
		e.settingsChanged(at.hosts)
	}
	e.log().WithFields(logrus.Fields{
		"application": e.who.Application, "user": e.who.User, "namespace": q.Namespace, "hosts": len(at.hosts), "lift": q.Lift, "ttl": q.TTL.Std().String(), "reason": q.Reason,
	}).Info("freezes changed")
	return done, nil
}

func (at *targetHosts) scopes(namespace string) []catalog.Scope {
	scopes := make([]catalog.Scope, len(at.hosts))
	for i, host := range at.hosts {
		scopes[i] = catalog.Scope{Host: host, Namespace: namespace}
	}
	return scopes
}

func (e *exchange) lift(ctx context.Context, q *dialect.Freezing, at *targetHosts, scopes []catalog.Scope) (dialect.Frozen, error) {
	existed, err := e.api.store.Lift(ctx, scopes)
	if err != nil {
		return dialect.Frozen{}, err
	}
	done := dialect.Frozen{Outcomes: outcomesOf(q.Targets, at, func(n int) (procfleet.Code, string) {
		if !existed[n] {
			return procfleet.CodeNotRunning, "nothing was frozen"
		}
		return success(n)
	})}
	for _, was := range existed {
		if was {
			done.Lifted++
		}
	}
	return done, nil
}

// settingsChanged notifies the agents of the hosts, or all agents if hosts is empty. An
// agent that misses the notification polls its settings within some minutes.
func (e *exchange) settingsChanged(hosts []procfleet.Host) {
	if e.api.cfg.Agents == nil {
		return
	}
	if err := e.api.cfg.Agents.SettingsChanged(hosts); err != nil {
		e.log().WithError(err).WithField("hosts", len(hosts)).Warn("settings notification not published, agents will poll")
	}
}

// callerName returns the text that a freeze stores for its caller: application (user).
func callerName(who *auth.Caller) string {
	name := who.Application
	if who.User != "" {
		name += " (" + who.User + ")"
	}
	return strings.ToValidUTF8(name[:min(len(name), catalog.MaxReason)], "")
}

func (e *exchange) listFreezes(ctx context.Context, page *dialect.FreezePage, _ string) ([]catalog.Freeze, error) {
	freezes, err := e.api.store.FreezePage(ctx, page.After, page.Limit)
	if err != nil {
		return nil, fmt.Errorf("list freezes: %w", err)
	}
	return freezes, nil
}

// HostEvents reads the events that agents published.
type HostEvents interface {
	HostEvents(ctx context.Context, q bus.HostEventQuery) (bus.HostEventPage, error)
}

func (e *exchange) listEvents(ctx context.Context, p *dialect.EventPage, _ string) (dialect.Events, error) {
	if e.api.cfg.Events == nil {
		return dialect.Events{}, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read the events of agents", RetryAfter: retryUnavailable}
	}
	page, err := e.api.cfg.Events.HostEvents(ctx, bus.HostEventQuery{
		Host: p.Host, Namespace: p.Namespace, Kind: p.Kind, Since: p.Since, After: p.After, Newest: p.Newest, Limit: p.Limit,
	})
	if err != nil {
		if errors.Is(err, bus.ErrUnavailable) {
			return dialect.Events{}, &dialect.Error{Kind: dialect.Unavailable, Problem: "the events of agents cannot be read now; try again later", RetryAfter: retryUnavailable}
		}
		return dialect.Events{}, fmt.Errorf("list events: %w", err)
	}
	for reason, n := range page.Refused {
		e.api.metrics.refusedEvents.Add(ctx, int64(n), metric.WithAttributes(attribute.String("reason", reason)))
	}
	return dialect.Events{Events: page.Events, Next: page.Next, More: page.More}, nil
}
