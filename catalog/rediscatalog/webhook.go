package rediscatalog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// The state of a webhook and the number of its dead deliveries have the field of the webhook with
// these suffixes.
const (
	stateSuffix = "\x00\x00state"
	deadSuffix  = "\x00\x00dead"
)

func webhookField(application, name string) string { return application + "\x00" + name }

// setWebhookScript stores a webhook.
//
// KEYS[1] hash of the webhooks
// ARGV[1] field of the webhook
// ARGV[2] the webhook
// ARGV[3] field of its state
// ARGV[4] its state if it is new
// Returns 1.
var setWebhookScript = redis.NewScript(`
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSETNX', KEYS[1], ARGV[3], ARGV[4])
return 1
`)

// SetWebhook stores a webhook.
func (s *Catalog) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	err := w.Validate()
	state := w.State
	w.State, w.Dead = catalog.WebhookState{}, 0 // have their own fields
	var packed, packedState []byte
	if err == nil {
		packed, err = json.Marshal(w)
	}
	if err == nil {
		packedState, err = json.Marshal(state)
	}
	if err == nil {
		field := webhookField(w.Application, w.Name)
		err = s.conn.RunDurably(ctx, &redisconn.Call{
			Script: setWebhookScript, Keys: []string{s.keys.webhooks()}, Args: []any{field, packed, field + stateSuffix, packedState},
		})
	}
	if err != nil {
		return fmt.Errorf("set a webhook: %w", err)
	}
	return nil
}

// removeWebhookScript removes a webhook.
//
// KEYS[1] hash of the webhooks
// KEYS[2] its dead deliveries
// ARGV[1] field of the webhook
// ARGV[2] field of its state
// ARGV[3] field of the number of its dead deliveries
// Returns 1 if it existed, otherwise 0.
var removeWebhookScript = redis.NewScript(`
redis.call('UNLINK', KEYS[2])
redis.call('HDEL', KEYS[1], ARGV[2], ARGV[3])
return redis.call('HDEL', KEYS[1], ARGV[1])
`)

// RemoveWebhook removes a webhook. After a failure in the middle of the call, a repeated attempt
// reports that it did not exist.
func (s *Catalog) RemoveWebhook(ctx context.Context, application, name string) (existed bool, err error) {
	field := webhookField(application, name)
	c := &redisconn.Call{
		Script: removeWebhookScript, Keys: []string{s.keys.webhooks(), s.keys.deadDeliveries(application, name)},
		Args: []any{field, field + stateSuffix, field + deadSuffix},
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return false, fmt.Errorf("remove a webhook: %w", err)
	}
	n, err := c.Cmd.Int()
	return n == 1, err
}

// Webhooks reads all webhooks in one call.
func (s *Catalog) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	var answer *redis.MapStringStringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { answer = pipe.HGetAll(ctx, s.keys.webhooks()) }); err != nil {
		return nil, fmt.Errorf("read webhooks: %w", err)
	}
	var all []catalog.Webhook
	for field, text := range answer.Val() {
		if strings.HasSuffix(field, stateSuffix) || strings.HasSuffix(field, deadSuffix) {
			continue
		}
		w, err := readWebhook(text, answer.Val()[field+stateSuffix], answer.Val()[field+deadSuffix])
		if err != nil {
			return nil, fmt.Errorf("%w: webhook %q: %w", redisconn.ErrDamaged, field, err)
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b catalog.Webhook) int {
		return cmp.Or(cmp.Compare(a.Application, b.Application), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// readWebhook parses a webhook, its state, and the number of its dead deliveries, which may be "".
func readWebhook(text, state, dead string) (w catalog.Webhook, err error) {
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		return w, err
	}
	if err := json.Unmarshal([]byte(state), &w.State); err != nil || dead == "" {
		return w, err
	}
	w.Dead, err = strconv.Atoi(dead)
	return w, err
}

// recordDeliveryScript stores the state of a webhook, and adds and removes dead deliveries.
//
// KEYS[1] hash of the webhooks
// KEYS[2] dead deliveries of the webhook
// ARGV[1] field of the webhook
// ARGV[2] field of its state
// ARGV[3] its state, or "" for no change
// ARGV[4] field of the number of its dead deliveries
// ARGV[5] position of the dead delivery, or "" for none
// ARGV[6] the dead delivery, or "" to remove it
// ARGV[7] maximum number of dead deliveries
// Returns 1.
var recordDeliveryScript = redis.NewScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 1 end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], ARGV[2], ARGV[3]) end
if ARGV[5] == '' then return 1 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], ARGV[5], ARGV[5])
if ARGV[6] ~= '' then redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6]) end
local count = redis.call('ZCARD', KEYS[2])
while count > tonumber(ARGV[7]) do
  redis.call('ZREM', KEYS[2], redis.call('ZRANGE', KEYS[2], 0, 0)[1])
  count = count - 1
end
redis.call('HSET', KEYS[1], ARGV[4], count)
return 1
`)

// RecordDelivery stores the state of a webhook and a dead delivery.
func (s *Catalog) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	packed, err := json.Marshal(state)
	var position string
	var packedDead []byte
	if err == nil && dead != nil {
		position = strconv.FormatUint(dead.Position, 10)
		packedDead, err = json.Marshal(dead)
	}
	if err == nil {
		err = s.changeDelivery(ctx, application, name, packed, position, packedDead)
	}
	if err != nil {
		return fmt.Errorf("record a delivery: %w", err)
	}
	return nil
}

func (s *Catalog) changeDelivery(ctx context.Context, application, name string, state []byte, position string, dead []byte) error {
	field := webhookField(application, name)
	return s.conn.RunDurably(ctx, &redisconn.Call{
		Script: recordDeliveryScript, Keys: []string{s.keys.webhooks(), s.keys.deadDeliveries(application, name)},
		Args: []any{field, field + stateSuffix, state, field + deadSuffix, position, dead, catalog.MaxDeadDeliveries},
	})
}

// DeadDeliveries returns the dead deliveries of a webhook, sorted by position.
func (s *Catalog) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	var answer *redis.StringSliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answer = pipe.ZRange(ctx, s.keys.deadDeliveries(application, name), 0, -1)
	}); err != nil {
		return nil, fmt.Errorf("read dead deliveries: %w", err)
	}
	var all []catalog.DeadDelivery
	for _, text := range answer.Val() {
		d, err := readDead(text)
		if err != nil {
			return nil, fmt.Errorf("%w: dead delivery of webhook %q: %w", redisconn.ErrDamaged, name, err)
		}
		all = append(all, d)
	}
	return all, nil
}

func readDead(text string) (d catalog.DeadDelivery, err error) {
	return d, json.Unmarshal([]byte(text), &d)
}

// RemoveDead removes a dead delivery.
func (s *Catalog) RemoveDead(ctx context.Context, application, name string, position uint64) error {
	if err := s.changeDelivery(ctx, application, name, nil, strconv.FormatUint(position, 10), nil); err != nil {
		return fmt.Errorf("remove a dead delivery: %w", err)
	}
	return nil
}
