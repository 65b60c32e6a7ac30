package catalogtest

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// SetWebhook implements [catalog.Webhooks].
func (m *Model) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err = cmp.Or(err, w.Validate()); err == nil {
		key := [2]string{w.Application, w.Name}
		if known, exists := m.webhooks[key]; exists {
			w.State = known.State
		}
		m.webhooks[key] = w
	}
	return err
}

// RemoveWebhook implements [catalog.Webhooks].
func (m *Model) RemoveWebhook(ctx context.Context, application, name string) (bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	key := [2]string{application, name}
	_, existed := m.webhooks[key]
	if err == nil {
		delete(m.webhooks, key)
		delete(m.dead, key)
	}
	return existed, err
}

// Webhooks implements [catalog.Webhooks].
func (m *Model) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	all := slices.SortedFunc(maps.Values(m.webhooks), func(a, b catalog.Webhook) int {
		return cmp.Or(cmp.Compare(a.Application, b.Application), cmp.Compare(a.Name, b.Name))
	})
	for i := range all {
		all[i].Dead = len(m.dead[[2]string{all[i].Application, all[i].Name}])
	}
	return all, err
}

// RecordDelivery implements [catalog.Webhooks].
func (m *Model) RecordDelivery(ctx context.Context, application, name string, s catalog.WebhookState, dead *catalog.DeadDelivery) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	key := [2]string{application, name}
	w, exists := m.webhooks[key]
	if err != nil || !exists {
		return err
	}
	w.State = s
	m.webhooks[key] = w
	if dead == nil {
		return nil
	}
	if m.dead[key] == nil {
		m.dead[key] = map[uint64]catalog.DeadDelivery{}
	}
	m.dead[key][dead.Position] = *dead
	if len(m.dead[key]) > catalog.MaxDeadDeliveries {
		delete(m.dead[key], slices.Min(slices.Collect(maps.Keys(m.dead[key]))))
	}
	return nil
}

// DeadDeliveries implements [catalog.Webhooks].
func (m *Model) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	return slices.SortedFunc(maps.Values(m.dead[[2]string{application, name}]), func(a, b catalog.DeadDelivery) int {
		return cmp.Compare(a.Position, b.Position)
	}), err
}

// RemoveDead implements [catalog.Webhooks].
func (m *Model) RemoveDead(ctx context.Context, application, name string, position uint64) error {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err == nil {
		delete(m.dead[[2]string{application, name}], position)
	}
	return err
}
