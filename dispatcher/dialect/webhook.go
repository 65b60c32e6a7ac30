package dialect

import "github.com/procfleet/procfleet/catalog"

// SetWebhook is the endpoint that stores a webhook.
type SetWebhook = Codec[WebhookChange, ShownWebhook]

// WebhookChange is a request to store a webhook without its application and secrets.
type WebhookChange struct {
	Webhook catalog.Webhook `json:"webhook"`
	Rotate  bool            `json:"rotate"` // replace the secret
}

// ShownWebhook is a webhook as its application sees it.
type ShownWebhook struct {
	catalog.Webhook
	Secret string  // a secret that the call has created; "" without one
	Behind *uint64 // number of events after its position; nil if it is unknown
}

// ListWebhooks is the endpoint that returns the webhooks of the caller's application.
type ListWebhooks = Codec[WebhookQuery, []ShownWebhook]

// WebhookQuery requests the webhooks of the caller's application.
type WebhookQuery struct{}

// RemoveWebhook is the endpoint that removes a webhook. The result reports whether it existed.
type RemoveWebhook = Codec[WebhookRemoval, bool]

// WebhookRemoval is a request to remove a webhook.
type WebhookRemoval struct {
	Name string `json:"name"`
}

// ListDead is the endpoint that returns the dead deliveries of a webhook.
type ListDead = Codec[DeadQuery, []catalog.DeadDelivery]

// DeadQuery requests the dead deliveries of a webhook.
type DeadQuery struct {
	Name string `json:"name"`
}

// Redeliver is the endpoint that sends a dead delivery again. The result is the problem of the
// attempt; "" if the receiver has accepted the event.
type Redeliver = Codec[Redelivery, string]

// Redelivery is a request to send a dead delivery again.
type Redelivery struct {
	Name  string `json:"name"`
	Event string `json:"event"` // id of the event
}
