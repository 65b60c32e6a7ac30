package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/webhook"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
)

// newWebhooks returns the deliverer of the events of tasks.
func newWebhooks(a *api) *webhook.Deliverer {
	return webhook.NewDeliverer(webhook.Config{
		Store: a.store, Feed: a.cfg.TaskFeed, Send: a.sender.Send, Selects: a.webhookSelects, Body: webhookBody,
		Count: func(outcome string) { a.metrics.webhook(outcome, 1) }, Failing: a.metrics.failingWebhook, Log: a.log, Reached: a.cfg.Reached,
	})
}

// webhookSelects reports whether the application of a webhook may read an event's task now.
func (a *api) webhookSelects(w *catalog.Webhook, e *bus.TaskEvent) (bool, error) {
	if w.Business != "" && w.Business != e.Business {
		return false, nil
	}
	who, err := a.authenticator.Stored(w.Application, w.User)
	if err != nil {
		return false, err
	}
	return a.authenticator.StillReads(&who, &procfleet.Task{ID: e.Task, Application: e.Application, Business: e.Business}), nil
}

func webhookBody(e *bus.TaskEvent) ([]byte, error) { return dialect.WebhookBody(taskEvent(e)) }

// ofApplication allows a call about the webhooks of the caller's application, and returns its code.
func ofApplication[Q any](e *exchange, _ context.Context, _ *Q) (application string, err error) { //nolint:revive // the receiver is first, as in a method expression
	return e.who.Application, e.who.MayDo(e.call.action)
}

func (e *exchange) setWebhook(ctx context.Context, q *dialect.WebhookChange, application string) (dialect.ShownWebhook, error) {
	all, err := e.api.store.Webhooks(ctx)
	if err != nil {
		return dialect.ShownWebhook{}, fmt.Errorf("read the webhooks: %w", err)
	}
	shown := dialect.ShownWebhook{Webhook: q.Webhook}
	shown.Application, shown.User = application, e.who.User
	if shown.SetAt, err = e.api.store.Now(ctx); err != nil {
		return shown, fmt.Errorf("read the store's clock: %w", err)
	}
	if known := findWebhook(all, application, q.Webhook.Name); known != nil {
		shown.Secrets, shown.State, shown.Dead = known.Secrets, known.State, known.Dead
	} else if len(all) >= catalog.MaxWebhooks {
		return shown, tooLarge("there are %d webhooks, at most %d are allowed; remove some", len(all), catalog.MaxWebhooks)
	} else if shown.State.Position, err = e.lastEvent(ctx); err != nil {
		return shown, err
	}
	if q.Rotate || len(shown.Secrets) == 0 {
		shown.Secrets = webhook.Rotate(shown.Secrets, shown.SetAt)
		shown.Secret = shown.Secrets[0].Secret
	}
	if err := e.auditChange(ctx, webhookRecord("set webhook", shown.Name)); err != nil {
		return shown, err
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.api.store.SetWebhook(ctx, shown.Webhook); err != nil {
		return shown, fmt.Errorf("store webhook %s: %w", shown.Name, err)
	}
	shown.Behind = e.behind(ctx)(&shown.Webhook)
	return shown, nil
}

// findWebhook returns the webhook of an application with a name; nil if there is none.
func findWebhook(all []catalog.Webhook, application, name string) *catalog.Webhook {
	i := slices.IndexFunc(all, func(w catalog.Webhook) bool { return w.Application == application && w.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// lastEvent returns the position of the last event of tasks.
func (e *exchange) lastEvent(ctx context.Context) (uint64, error) {
	unavailable := &dialect.Error{Kind: dialect.Unavailable, Problem: "the events of tasks cannot be read now; try again later", RetryAfter: retryUnavailable}
	if e.api.cfg.TaskFeed == nil {
		unavailable.Problem = "this server does not read the events of tasks"
		return 0, unavailable
	}
	_, last, err := e.api.cfg.TaskFeed.TaskEventRange(ctx)
	if errors.Is(err, bus.ErrUnavailable) {
		return 0, unavailable
	}
	return last, err
}

// behind returns a function that returns the number of events after the position of a webhook; nil if
// the broker is unavailable.
func (e *exchange) behind(ctx context.Context) func(w *catalog.Webhook) *uint64 {
	last, err := e.lastEvent(ctx)
	return func(w *catalog.Webhook) *uint64 {
		if err != nil {
			return nil
		}
		n := last - min(last, w.State.Position)
		return &n
	}
}

func webhookRecord(change, name string) audit.Record {
	record := audit.Record{Change: change}
	record.AddProcess(name)
	return record
}

func (e *exchange) listWebhooks(ctx context.Context, _ *dialect.WebhookQuery, application string) ([]dialect.ShownWebhook, error) {
	all, err := e.api.store.Webhooks(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the webhooks: %w", err)
	}
	var shown []dialect.ShownWebhook
	behind := e.behind(ctx)
	for _, w := range all {
		if w.Application == application {
			shown = append(shown, dialect.ShownWebhook{Webhook: w, Behind: behind(&w)})
		}
	}
	return shown, nil
}

func (e *exchange) removeWebhook(ctx context.Context, q *dialect.WebhookRemoval, application string) (bool, error) {
	if err := e.auditChange(ctx, webhookRecord("remove webhook", q.Name)); err != nil {
		return false, err
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	existed, err := e.api.store.RemoveWebhook(ctx, application, q.Name)
	if err != nil {
		return false, fmt.Errorf("remove webhook %s: %w", q.Name, err)
	}
	return existed, nil
}

func (e *exchange) listDead(ctx context.Context, q *dialect.DeadQuery, application string) ([]catalog.DeadDelivery, error) {
	_, dead, err := e.deadOf(ctx, application, q.Name)
	return dead, err
}

// deadOf returns a webhook of an application with its dead deliveries.
func (e *exchange) deadOf(ctx context.Context, application, name string) (*catalog.Webhook, []catalog.DeadDelivery, error) {
	all, err := e.api.store.Webhooks(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the webhooks: %w", err)
	}
	w := findWebhook(all, application, name)
	if w == nil {
		return nil, nil, &dialect.Error{Kind: dialect.NotFound, Field: "name", Problem: fmt.Sprintf("there is no webhook %.80q", name)}
	}
	dead, err := e.api.store.DeadDeliveries(ctx, application, name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the dead deliveries of webhook %s: %w", name, err)
	}
	return w, dead, nil
}

// redeliver sends a dead delivery again, and removes it if the receiver accepts it.
func (e *exchange) redeliver(ctx context.Context, q *dialect.Redelivery, application string) (problem string, err error) {
	w, dead, err := e.deadOf(ctx, application, q.Name)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(dead, func(d catalog.DeadDelivery) bool { return d.Event == q.Event })
	if i < 0 {
		return "", &dialect.Error{Kind: dialect.NotFound, Field: "event", Problem: fmt.Sprintf("webhook %s has no dead delivery of event %.80q", q.Name, q.Event)}
	}
	if err := e.auditChange(ctx, webhookRecord("redeliver", q.Name)); err != nil {
		return "", err
	}
	e.release() // release the body's memory before the request to the receiver
	if failed := e.api.sender.Send(ctx, w, q.Event, dead[i].Body); failed != nil {
		return failed.Error(), nil
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.api.store.RemoveDead(ctx, application, q.Name, dead[i].Position); err != nil {
		return "", fmt.Errorf("remove the dead delivery of event %s, which was delivered: %w", q.Event, err)
	}
	return "", nil
}
