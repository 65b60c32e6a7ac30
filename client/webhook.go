package client

import (
	"context"
	"net/http"
	"net/url"

	v1 "github.com/procfleet/procfleet/api/v1"
)

// SetWebhook stores a webhook of the caller's application, or replaces the one of this name, and
// returns it. Secret is set if the call has created a secret; no other call returns it.
func (c *Client) SetWebhook(ctx context.Context, name string, w WebhookRequest) (stored Webhook, err error) {
	return stored, c.send(ctx, http.MethodPut, webhookPath(name), w, &stored)
}

// Webhooks returns the webhooks of the caller's application, sorted by name.
func (c *Client) Webhooks(ctx context.Context) ([]Webhook, error) {
	var answer v1.Webhooks
	return answer.Webhooks, c.do(ctx, get("/v1/webhooks"), &answer)
}

// RemoveWebhook removes a webhook with its dead deliveries and reports whether it existed.
func (c *Client) RemoveWebhook(ctx context.Context, name string) (existed bool, err error) {
	var answer v1.WebhookRemoved
	err = c.send(ctx, http.MethodDelete, webhookPath(name), nil, &answer)
	return answer.Removed, err
}

// DeadDeliveries returns the dead deliveries of a webhook, in the order of the events.
func (c *Client) DeadDeliveries(ctx context.Context, name string) ([]DeadDelivery, error) {
	var answer v1.DeadDeliveries
	return answer.Dead, c.do(ctx, get(webhookPath(name)+"/dead"), &answer)
}

// Redeliver sends a dead delivery again, and removes it if the receiver accepts it. problem says why
// the receiver did not; "" if it did.
func (c *Client) Redeliver(ctx context.Context, name, event string) (problem string, err error) {
	var answer v1.Redelivered
	err = c.send(ctx, http.MethodPost, webhookPath(name)+"/redeliver", v1.RedeliverRequest{Event: event}, &answer)
	return answer.Problem, err
}

func webhookPath(name string) string { return "/v1/webhooks/" + url.PathEscape(name) }
