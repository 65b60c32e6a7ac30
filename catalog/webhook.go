package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Limits of webhooks.
const (
	MaxWebhooks       = 256  // maximum number of webhooks of all applications; callers keep to it
	MaxDeadDeliveries = 1000 // number of dead deliveries that are kept per webhook
	maxWebhookURL     = 2048 // maximum length of a URL in bytes
)

// Webhook sends the events of tasks to a URL of an application. Application and name identify it.
type Webhook struct {
	Application string `json:"application"` // "" without authentication
	Name        string `json:"name"`
	URL         string `json:"url"`
	Business    string `json:"business,omitempty"` // only events of its tasks; "" for all that the application may read
	Paused      bool   `json:"paused,omitempty"`
	// Secrets sign the deliveries: the newest first, and while it rotates the one before it.
	Secrets []WebhookSecret `json:"secrets"`
	User    string          `json:"user,omitempty"` // that set the webhook
	SetAt   time.Time       `json:"set_at"`
	// State is kept when the webhook is replaced.
	State WebhookState `json:"state,omitzero"`
	// Dead is the number of dead deliveries. The store counts them.
	Dead int `json:"dead,omitempty"`
}

// WebhookSecret is a key of signatures, in the form of Standard Webhooks: "whsec_" and base64.
type WebhookSecret struct {
	Secret string    `json:"secret"`
	Until  time.Time `json:"until,omitzero"` // zero: without an end
}

// WebhookState is the progress of the deliveries of a webhook.
type WebhookState struct {
	// SetAt is that of the webhook when it had this state.
	SetAt    time.Time `json:"set_at,omitzero"`
	Position uint64    `json:"position"`         // of the last event that was delivered, or is dead, or was not selected
	Missed   uint64    `json:"missed,omitempty"` // events that the stream dropped before they were delivered
	Failure  Failure   `json:"failure,omitzero"`
}

// Failure describes the failed attempts since the last successful delivery. The zero value is none.
type Failure struct {
	Attempts int       `json:"attempts"`
	Since    time.Time `json:"since"`
	NextAt   time.Time `json:"next_at,omitzero"` // of the next attempt
	Problem  string    `json:"problem"`          // of the last attempt
	// Ended means that the receiver wants no deliveries: it replied 410 Gone.
	Ended bool `json:"ended,omitempty"`
}

// Current returns the state for the next delivery: to set a webhook ends its failure.
func (w *Webhook) Current() WebhookState {
	s := w.State
	if !s.SetAt.Equal(w.SetAt) {
		s.Failure = Failure{}
	}
	s.SetAt = w.SetAt
	return s
}

// DeadDelivery is an event whose delivery was given up.
type DeadDelivery struct {
	Position uint64          `json:"position"` // of the event in the stream
	Event    string          `json:"event"`    // id of the event
	Body     json.RawMessage `json:"body"`
	Problem  string          `json:"problem"` // of the last attempt
	At       time.Time       `json:"at"`      // when it was given up
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (w *Webhook) Validate() error {
	var errs []error
	refuse := func(field, problem string, args ...any) {
		errs = append(errs, &procfleet.FieldError{Field: field, Problem: fmt.Sprintf(problem, args...)})
	}
	if strings.ContainsRune(w.Application, 0) {
		refuse("application", "contains a NUL character")
	}
	if !validPolicyName(w.Name) {
		refuse("name", "%.80q is no name: it has 1 to %d letters, digits, dots, hyphens and underscores", w.Name, MaxPolicyName)
	}
	switch target, err := url.Parse(w.URL); {
	case len(w.URL) > maxWebhookURL:
		refuse("url", "has %d bytes, at most %d are allowed", len(w.URL), maxWebhookURL)
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "":
		refuse("url", "is not an http or https URL")
	case target.User != nil:
		refuse("url", "contains a user: receivers verify the signature of each delivery instead")
	}
	if n := len(w.Secrets); n < 1 || n > 2 {
		refuse("secrets", "has %d secrets, 1 or 2 are allowed", n)
	}
	return errors.Join(errs...)
}

// Webhooks stores webhooks by application and name.
type Webhooks interface {
	// SetWebhook stores a webhook, or replaces one of the same name except for State and Dead.
	SetWebhook(ctx context.Context, w Webhook) error
	// RemoveWebhook removes a webhook with its dead deliveries and reports whether it existed.
	RemoveWebhook(ctx context.Context, application, name string) (existed bool, err error)
	// Webhooks returns all webhooks, sorted by application and name.
	Webhooks(ctx context.Context) ([]Webhook, error)
	// RecordDelivery stores the state of a webhook that exists, and with it a dead delivery, unless
	// dead is nil. Of more than [MaxDeadDeliveries] those with the lowest positions are dropped.
	RecordDelivery(ctx context.Context, application, name string, s WebhookState, dead *DeadDelivery) error
	// DeadDeliveries returns the dead deliveries of a webhook, sorted by position.
	DeadDeliveries(ctx context.Context, application, name string) ([]DeadDelivery, error)
	// RemoveDead removes the dead delivery with a position, if there is one.
	RemoveDead(ctx context.Context, application, name string, position uint64) error
}
