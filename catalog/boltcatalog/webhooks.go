package boltcatalog

import (
	"bytes"
	"context"
	"fmt"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

func webhookKey(application, name string) []byte { return []byte(application + "\x00" + name) }

// deadPrefix is the beginning of the keys of a webhook's dead deliveries.
func deadPrefix(application, name string) []byte {
	return append(webhookKey(application, name), 0)
}

// SetWebhook stores a webhook.
func (s *Catalog) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	if err := w.Validate(); err != nil {
		return fmt.Errorf("set a webhook: %w", err)
	}
	key := webhookKey(w.Application, w.Name)
	return change(ctx, s, func(t *tx) error {
		var known catalog.Webhook
		found, err := t.Get(bucketWebhooks, key, &known)
		if err != nil {
			return err
		}
		if found {
			w.State = known.State
		}
		w.Dead = known.Dead
		return t.Put(bucketWebhooks, key, w)
	})
}

// RemoveWebhook removes a webhook.
func (s *Catalog) RemoveWebhook(ctx context.Context, application, name string) (existed bool, err error) {
	key := webhookKey(application, name)
	return update(ctx, s, func(t *tx) (bool, error) {
		dead := t.Bucket(bucketDead)
		for _, position := range t.dead(application, name) {
			if err := dead.Delete(position); err != nil {
				return false, err
			}
		}
		b := t.Bucket(bucketWebhooks)
		return b.Get(key) != nil, b.Delete(key)
	})
}

// dead returns the keys of a webhook's dead deliveries, sorted by position.
func (t *tx) dead(application, name string) (keys [][]byte) {
	prefix := deadPrefix(application, name)
	c := t.Bucket(bucketDead).Cursor()
	for key, _ := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	return keys
}

// Webhooks returns all webhooks, sorted by application and name.
func (s *Catalog) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Webhook, error) {
		var all []catalog.Webhook
		err := t.Bucket(bucketWebhooks).ForEach(func(key, _ []byte) error {
			var w catalog.Webhook
			_, err := t.Get(bucketWebhooks, key, &w)
			all = append(all, w)
			return err
		})
		return all, err
	})
}

// RecordDelivery stores the state of a webhook and a dead delivery.
func (s *Catalog) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	return change(ctx, s, func(t *tx) error {
		return t.changeWebhook(application, name, func(w *catalog.Webhook) error {
			w.State = state
			if dead == nil {
				return nil
			}
			return t.Put(bucketDead, append(deadPrefix(application, name), boltdb.Number8(dead.Position)...), dead)
		})
	})
}

// changeWebhook changes a webhook that exists, drops the dead deliveries above the limit, and counts
// the others.
func (t *tx) changeWebhook(application, name string, change func(*catalog.Webhook) error) error {
	key := webhookKey(application, name)
	var w catalog.Webhook
	found, err := t.Get(bucketWebhooks, key, &w)
	if err != nil || !found {
		return err
	}
	if err := change(&w); err != nil {
		return err
	}
	dead := t.dead(application, name)
	for ; len(dead) > catalog.MaxDeadDeliveries; dead = dead[1:] {
		if err := t.Bucket(bucketDead).Delete(dead[0]); err != nil {
			return err
		}
	}
	w.Dead = len(dead)
	return t.Put(bucketWebhooks, key, w)
}

// DeadDeliveries returns the dead deliveries of a webhook, sorted by position.
func (s *Catalog) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	return view(ctx, s, func(t *tx) ([]catalog.DeadDelivery, error) {
		var all []catalog.DeadDelivery
		for _, key := range t.dead(application, name) {
			var d catalog.DeadDelivery
			if _, err := t.Get(bucketDead, key, &d); err != nil {
				return nil, err
			}
			all = append(all, d)
		}
		return all, nil
	})
}

// RemoveDead removes a dead delivery.
func (s *Catalog) RemoveDead(ctx context.Context, application, name string, position uint64) error {
	return change(ctx, s, func(t *tx) error {
		return t.changeWebhook(application, name, func(*catalog.Webhook) error {
			return t.Bucket(bucketDead).Delete(append(deadPrefix(application, name), boltdb.Number8(position)...))
		})
	})
}
