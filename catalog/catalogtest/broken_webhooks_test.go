package catalogtest_test

import (
	"context"
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

func webhookDefects() map[string]defect {
	by := func(w wrap, checks ...string) defect { return defect{w, checks} }
	return map[string]defect{
		"there is one webhook":             by(func(s store) store { return oneWebhook{s} }, "webhooks are kept whole and in order"),
		"a changed webhook begins again":   by(func(s store) store { return restarting{s} }, "a webhook is replaced without its state, and removed with it"),
		"dead deliveries outlive":          by(func(s store) store { return outliving{s} }, "a webhook is replaced without its state, and removed with it"),
		"dead deliveries are out of order": by(func(s store) store { return reversedDead{s} }, "dead deliveries are kept in order until they are removed"),
		"dead deliveries stay":             by(func(s store) store { return keepsDead{s} }, "dead deliveries are kept in order until they are removed"),
		"the oldest dead deliveries stay":  by(func(s store) store { return oldestDead{s} }, "the newest dead deliveries are kept"),
		"invalid webhooks are lost":        by(func(s store) store { return losesWebhooks{s} }, "invalid webhooks are refused"),
	}
}

type oneWebhook struct{ store }

func (s oneWebhook) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	all, err := s.store.Webhooks(ctx)
	return all[:min(1, len(all))], err
}

// restarting forgets the state of a webhook that is replaced.
type restarting struct{ store }

func (s restarting) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	if w.Validate() == nil {
		_, _ = s.RemoveWebhook(ctx, w.Application, w.Name)
	}
	return s.store.SetWebhook(ctx, w)
}

// outliving removes a webhook without its dead deliveries.
type outliving struct{ store }

func (s outliving) RemoveWebhook(ctx context.Context, application, name string) (bool, error) {
	dead, err := s.DeadDeliveries(ctx, application, name)
	if err != nil {
		return false, err
	}
	existed, err := s.store.RemoveWebhook(ctx, application, name)
	if !existed || err != nil {
		return existed, err
	}
	w := catalog.Webhook{Application: application, Name: name, URL: "https://a.example", Secrets: []catalog.WebhookSecret{{}}}
	if err := s.SetWebhook(ctx, w); err != nil {
		return existed, err
	}
	for i := range dead {
		if err := s.RecordDelivery(ctx, application, name, w.State, &dead[i]); err != nil {
			return existed, err
		}
	}
	return existed, nil
}

type reversedDead struct{ store }

func (s reversedDead) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	all, err := s.store.DeadDeliveries(ctx, application, name)
	slices.Reverse(all)
	return all, err
}

type keepsDead struct{ store }

func (s keepsDead) RemoveDead(ctx context.Context, _, _ string, _ uint64) error { return ctx.Err() }

// oldestDead drops the newest dead delivery of a full list.
type oldestDead struct{ store }

func (s oldestDead) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	if all, err := s.DeadDeliveries(ctx, application, name); err != nil || len(all) >= catalog.MaxDeadDeliveries {
		return err
	}
	return s.store.RecordDelivery(ctx, application, name, state, dead)
}

// losesWebhooks confirms invalid webhooks and does not store them.
type losesWebhooks struct{ store }

func (s losesWebhooks) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	if w.Validate() != nil {
		return ctx.Err()
	}
	return s.store.SetWebhook(ctx, w)
}
