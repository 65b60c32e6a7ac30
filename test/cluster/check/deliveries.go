package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// failedDeliveryEvery is the number of requests to the webhook per request that gets an error, so
// that a dispatcher must repeat it.
const failedDeliveryEvery = 400

// deliveries receives the events of all tasks from a webhook, and records the numbers of the events
// of each task in the order of their first receipt.
type deliveries struct {
	log      *record
	verifier *standardwebhooks.Webhook

	mu       sync.Mutex
	requests int
}

// follow sets a webhook whose receiver is that of the callbacks.
func (l *Load) follow(ctx context.Context) error {
	stored, err := l.clients[0].SetWebhook(ctx, l.webhook(), client.WebhookRequest{URL: l.calls.base + webhookPath})
	if err == nil && stored.Secret == nil {
		err = fmt.Errorf("it existed: run %s is not unique", l.cfg.Run)
	}
	if err != nil {
		return fmt.Errorf("set a webhook: %w", err)
	}
	verifier, err := standardwebhooks.NewWebhook(*stored.Secret)
	if err != nil {
		return err
	}
	l.log.edit(func(h *History) { h.Delivered = map[procfleet.TaskID][]int{} })
	l.calls.mu.Lock()
	defer l.calls.mu.Unlock()
	l.calls.deliveries = &deliveries{log: l.log, verifier: verifier}
	return nil
}

const webhookPath = "-webhook" // no key of a submission

func (l *Load) webhook() string { return "check-" + l.cfg.Run }

// unfollow removes the webhook, as far as the fleet works.
func (l *Load) unfollow() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := l.clients[0].RemoveWebhook(ctx, l.webhook()); err != nil {
		l.cfg.Log("the webhook is not removed: %v", err)
	}
}

func (d *deliveries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d == nil { // the secret is not known yet
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var message struct {
		Data struct {
			Task   procfleet.TaskID
			Number int
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &message)
	}
	if err == nil {
		err = d.verifier.Verify(body, r.Header)
	}
	switch {
	case err != nil:
		d.log.edit(func(h *History) { h.Unverified = append(h.Unverified, err.Error()) })
	case d.fails():
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		d.log.delivered(message.Data.Task, message.Data.Number)
	}
}

// fails reports whether a request gets an error.
func (d *deliveries) fails() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	return d.requests%failedDeliveryEvery == 3
}

// delivered records the number of an event that the webhook has sent.
func (r *record) delivered(task procfleet.TaskID, number int) {
	r.edit(func(h *History) {
		if !slices.Contains(h.Delivered[task], number) {
			h.Delivered[task] = append(h.Delivered[task], number)
		}
	})
}

// checkDeliveries checks what the webhook has sent of a task: each event that the broker has, in
// their order. The acceptance is published without waiting for it, so it may be late or missing.
func (j *judge) checkDeliveries(task procfleet.TaskID) {
	got := slices.DeleteFunc(slices.Clone(j.h.Delivered[task]), func(n int) bool { return n == 1 })
	if !slices.IsSorted(got) {
		j.broken(RuleDelivered, task, "the webhook sent the events %v", got)
	}
	for _, n := range j.h.Numbers[task] {
		if !slices.Contains(got, n) {
			j.broken(RuleDelivered, task, "the webhook sent the events %v, without %d", got, n)
			return
		}
	}
}
