package v1

import "time"

// WebhookRequest is a webhook without its name.
type WebhookRequest struct {
	// URL is the http or https URL that receives the events.
	URL string `json:"url"`
	// Business limits the events to the tasks of a business; "" for those of all tasks that the
	// application may read.
	Business string `json:"business,omitempty"`
	// Paused ends the deliveries until the webhook is set without it. The events are not lost.
	Paused bool `json:"paused,omitempty"`
	// RotateSecret replaces the secret. The old one signs for 24 more hours, too.
	RotateSecret bool `json:"rotate_secret,omitempty"`
}

// Webhooks are the webhooks of an application, sorted by name.
type Webhooks struct {
	Webhooks []Webhook `json:"webhooks"`
}

// Webhook sends the events of tasks to a URL.
type Webhook struct {
	Name           string     `json:"name"`
	URL            string     `json:"url"`
	Business       string     `json:"business"`
	Paused         bool       `json:"paused"`
	User           string     `json:"user"` // that set the webhook
	SetAt          time.Time  `json:"set_at"`
	Secret         *string    `json:"secret"`           // nil unless the call has created it; it is never shown again
	OldSecretUntil *time.Time `json:"old_secret_until"` // nil unless the secret was replaced
	Behind         *uint64    `json:"behind"`           // number of events of all tasks that were not handled yet; nil if unknown
	Missed         uint64     `json:"missed"`           // number of events of all tasks that were dropped before they were handled
	Dead           int        `json:"dead"`             // number of dead deliveries
	// Failure describes the failed attempts since the last delivery; nil without one.
	Failure *WebhookFailure `json:"failure"`
}

// WebhookFailure describes failed attempts.
type WebhookFailure struct {
	Attempts int        `json:"attempts"`
	Since    time.Time  `json:"since"`
	NextAt   *time.Time `json:"next_at"` // of the next attempt; nil if Ended
	Problem  string     `json:"problem"` // of the last attempt
	Ended    bool       `json:"ended"`   // the receiver replied 410 Gone
}

// WebhookRemoved reports whether a webhook existed.
type WebhookRemoved struct {
	Removed bool `json:"removed"`
}

// DeadDeliveries are the dead deliveries of a webhook, in the order of the events.
type DeadDeliveries struct {
	Dead []DeadDelivery `json:"dead"`
}

// DeadDelivery is an event whose delivery was given up after 72 hours.
type DeadDelivery struct {
	Event   string         `json:"event"` // id of the event
	At      time.Time      `json:"at"`    // when it was given up
	Problem string         `json:"problem"`
	Message WebhookMessage `json:"message"`
}

// RedeliverRequest names the event of a dead delivery.
type RedeliverRequest struct {
	Event string `json:"event"` // its id
}

// Redelivered is the outcome of an attempt to send a dead delivery again.
type Redelivered struct {
	Delivered bool   `json:"delivered"`
	Problem   string `json:"problem"` // "" if the receiver has accepted the event
}

// WebhookMessage is the body of a request to a webhook. The header webhook-id has the id of the
// event, which is the same in each attempt.
type WebhookMessage struct {
	Type      string    `json:"type"`      // "task." and the kind of the event, such as task.finished
	Timestamp time.Time `json:"timestamp"` // of the event
	Data      TaskEvent `json:"data"`
}
