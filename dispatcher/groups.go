package dispatcher

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

func (e *exchange) setGroups(ctx context.Context, q *dialect.Grouping, at *targetHosts) ([]dialect.TargetOutcome, error) {
	if len(at.hosts) > 0 {
		all := make([]catalog.HostGroups, len(at.hosts))
		for n, host := range at.hosts {
			all[n] = q.Groups
			all[n].Host = host
		}
		ctx, cancel := e.undisturbed(ctx)
		defer cancel()
		if err := e.auditChange(ctx, changeOf("set groups", q.Business, at.hosts, q.Groups.Namespace)); err != nil {
			return nil, err
		}
		if err := e.api.store.SetGroups(ctx, all); err != nil {
			return nil, fmt.Errorf("store groups of %s: %w", q.Groups.Namespace, err)
		}
		e.settingsChanged(at.hosts)
	}
	e.log().WithFields(logrus.Fields{
		"application": e.who.Application, "user": e.who.User, "namespace": q.Groups.Namespace, "groups": len(q.Groups.Groups), "hosts": len(at.hosts),
	}).Info("process groups changed")
	return outcomesOf(q.Targets, at, func(int) (procfleet.Code, string) {
		return procfleet.CodeSuccess, "success"
	}), nil
}

func (e *exchange) showGroups(ctx context.Context, q *dialect.GroupQuery, at *targetHosts) ([]dialect.TargetGroups, error) {
	groups, err := e.api.store.Groups(ctx, q.Namespace, at.hosts)
	if err != nil {
		return nil, fmt.Errorf("read groups of %s: %w", q.Namespace, err)
	}
	found := make([]dialect.TargetGroups, len(q.Targets))
	for i, t := range q.Targets {
		found[i] = dialect.TargetGroups{Target: t, Groups: catalog.HostGroups{Namespace: q.Namespace}}
		if n := at.of[i]; n >= 0 {
			found[i].Groups = groups[n]
		}
	}
	return found, nil
}
