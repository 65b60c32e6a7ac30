package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// business parses the id of a business, prefixed with its account and a dot unless that is "0".
func business(text string) (client.Business, error) {
	account, id, found := strings.Cut(text, ".")
	if !found {
		account, id = "", text
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return client.Business{}, invalid("business", strconv.Quote(text)+" is not the id of a business")
	}
	return client.Business{ID: n, Account: account}, nil
}

// catalogView is the content of the page of a catalog.
type catalogView struct {
	Business, Name string
	Processes      []catalogRow
	Topology       *client.Topology
	More           bool // the catalog has further processes
}

type catalogRow struct {
	client.CatalogProcess
	Drift *client.Drift // nil without hosts to compare
}

// catalogRows is the maximum number of processes on a page: each needs a comparison with its hosts.
const catalogRows = 50

func showCatalog(ctx context.Context, v *visit) (any, error) {
	view := catalogView{Business: v.business(), Name: v.query("name")}
	if view.Business == "" {
		return view, nil
	}
	of, err := business(view.Business)
	if err != nil {
		return nil, err
	}
	for p, err := range v.api.Catalog(ctx, of, client.CatalogQuery{Name: view.Name, PageSize: catalogRows + 1}) {
		if err != nil {
			return nil, err
		}
		if view.More = len(view.Processes) == catalogRows; view.More {
			break
		}
		row := catalogRow{CatalogProcess: p}
		drift, err := v.api.Drift(ctx, of, p.ID, client.DriftQuery{Limit: 1})
		if err == nil {
			row.Drift = &drift
		}
		view.Processes = append(view.Processes, row)
	}
	topology, err := v.api.BareTopology(ctx, of)
	view.Topology = &topology
	return view, err
}

// driftView is the content of the page of a process of a catalog.
type driftView struct {
	Business string
	client.Drift
}

func showDrift(ctx context.Context, v *visit) (any, error) {
	of, err := business(v.business())
	if err != nil {
		return nil, err
	}
	id, err := strconv.ParseInt(v.r.PathValue("process"), 10, 64)
	if err != nil {
		return nil, &client.Error{Status: http.StatusNotFound, Field: "process", Message: "is not the id of a process"}
	}
	drift, err := v.api.Drift(ctx, of, id, client.DriftQuery{Limit: rows})
	return driftView{v.business(), drift}, err
}

// rulesView is the content of the page of the schedules, maintenance windows and rollout policies of a namespace.
type rulesView struct {
	Namespace string
	Schedules []client.Schedule
	Policies  []policyRow
	Windows   []procfleet.MaintenanceWindow
	Default   string
	Above     int
}

type policyRow struct{ Name, Rollout string }

func showRules(ctx context.Context, v *visit) (any, error) {
	view := rulesView{Namespace: cmp.Or(v.query("namespace"), v.business())}
	if view.Namespace == "" {
		return view, nil
	}
	var err error
	if view.Schedules, err = v.api.Schedules(ctx, view.Namespace); err != nil {
		return nil, err
	}
	stored, err := v.api.RolloutPolicies(ctx, view.Namespace)
	if err != nil {
		return nil, err
	}
	view.Windows, view.Default, view.Above = stored.Windows, stored.Default, stored.RequiredAbove
	for _, p := range stored.Policies {
		text, err := json.Marshal(p.Rollout)
		if err != nil {
			return nil, err
		}
		view.Policies = append(view.Policies, policyRow{p.Name, indented(text)})
	}
	return view, nil
}

func indented(text []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}

// pauseSchedule pauses a schedule, or resumes it.
func pauseSchedule(ctx context.Context, v *visit) (string, error) {
	namespace, name := v.query("namespace"), v.query("name")
	all, err := v.api.Schedules(ctx, namespace)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Name != name {
			continue
		}
		rule := procfleet.ScheduleRule{
			Cron: s.Cron, TimeZone: s.TimeZone, Jitter: s.Jitter, Overlap: s.Overlap, Missed: s.Missed, Paused: v.query("paused") != "",
		}
		_, err := v.api.SetSchedule(ctx, namespace, name, client.ScheduleRequest{ScheduleRule: rule, Task: s.Task})
		return Prefix + "rules?" + url.Values{"namespace": {namespace}}.Encode(), err
	}
	return "", &client.Error{Status: http.StatusNotFound, Field: "name", Message: "the schedule does not exist any more"}
}

// webhooksView is the content of the page of webhooks.
type webhooksView struct {
	Webhooks []webhookRow
}

type webhookRow struct {
	client.Webhook
	Deliveries []client.DeadDelivery
}

func showWebhooks(ctx context.Context, v *visit) (any, error) {
	all, err := v.api.Webhooks(ctx)
	if err != nil {
		return nil, err
	}
	var view webhooksView
	for _, w := range all {
		row := webhookRow{Webhook: w}
		if w.Dead > 0 {
			if row.Deliveries, err = v.api.DeadDeliveries(ctx, w.Name); err != nil {
				return nil, err
			}
			row.Deliveries = row.Deliveries[:min(len(row.Deliveries), rows)]
		}
		view.Webhooks = append(view.Webhooks, row)
	}
	return view, nil
}

func redeliver(ctx context.Context, v *visit) (string, error) {
	problem, err := v.api.Redeliver(ctx, v.r.PathValue("name"), v.query("event"))
	if err == nil && problem != "" {
		err = &client.Error{Status: http.StatusBadGateway, Message: problem}
	}
	return Prefix + "webhooks", err
}
