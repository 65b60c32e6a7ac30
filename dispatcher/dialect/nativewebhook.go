package dialect

import (
	"encoding/json"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// WebhookBody returns the body of the request to a webhook for an event.
func WebhookBody(e v1.TaskEvent) ([]byte, error) {
	return json.Marshal(v1.WebhookMessage{Type: "task." + e.Kind, Timestamp: e.At, Data: e})
}

func decodeWebhookChange(r *Request) (WebhookChange, error) {
	var params v1.WebhookRequest
	if err := decodeNativeBody(r, &params); err != nil {
		return WebhookChange{}, err
	}
	q := WebhookChange{
		Webhook: catalog.Webhook{Name: r.Wildcards["name"], URL: params.URL, Business: params.Business, Paused: params.Paused},
		Rotate:  params.RotateSecret,
	}
	if params.URL == "" {
		return q, required("url")
	}
	valid := q.Webhook
	valid.Secrets = make([]catalog.WebhookSecret, 1) // the endpoint adds it
	return q, valid.Validate()
}

func decodeWebhookQuery(*Request) (WebhookQuery, error) { return WebhookQuery{}, nil }

func decodeWebhookRemoval(r *Request) (WebhookRemoval, error) {
	return WebhookRemoval{Name: r.Wildcards["name"]}, nil
}

func decodeDeadQuery(r *Request) (DeadQuery, error) {
	return DeadQuery{Name: r.Wildcards["name"]}, nil
}

func decodeRedelivery(r *Request) (Redelivery, error) {
	var params v1.RedeliverRequest
	if err := decodeNativeBody(r, &params); err != nil {
		return Redelivery{}, err
	}
	if params.Event == "" {
		return Redelivery{}, required("event")
	}
	return Redelivery{Name: r.Wildcards["name"], Event: params.Event}, nil
}

func nativeWebhook(w *ShownWebhook) v1.Webhook {
	shown := v1.Webhook{
		Name: w.Name, URL: w.URL, Business: w.Business, Paused: w.Paused, User: w.User, SetAt: w.SetAt,
		Behind: w.Behind, Missed: w.State.Missed, Dead: w.Dead,
	}
	if w.Secret != "" {
		shown.Secret = &w.Secret
	}
	if len(w.Secrets) > 1 {
		shown.OldSecretUntil = &w.Secrets[1].Until
	}
	if f := w.Current().Failure; f.Attempts > 0 {
		shown.Failure = &v1.WebhookFailure{Attempts: f.Attempts, Since: f.Since, Problem: f.Problem, Ended: f.Ended}
		if !f.Ended {
			shown.Failure.NextAt = &f.NextAt
		}
	}
	return shown
}

func nativeWebhookSet(_ *WebhookChange, w ShownWebhook, _ string) Reply {
	return ok(nativeWebhook(&w))
}

func nativeWebhooks(_ *WebhookQuery, all []ShownWebhook, _ string) Reply {
	list := v1.Webhooks{Webhooks: make([]v1.Webhook, len(all))}
	for i := range all {
		list.Webhooks[i] = nativeWebhook(&all[i])
	}
	return ok(list)
}

func nativeWebhookRemoved(_ *WebhookRemoval, existed bool, _ string) Reply {
	return ok(v1.WebhookRemoved{Removed: existed})
}

func nativeDead(_ *DeadQuery, all []catalog.DeadDelivery, _ string) Reply {
	list := v1.DeadDeliveries{Dead: make([]v1.DeadDelivery, len(all))}
	for i, d := range all {
		list.Dead[i] = v1.DeadDelivery{Event: d.Event, At: d.At, Problem: d.Problem}
		_ = json.Unmarshal(d.Body, &list.Dead[i].Message) // [WebhookBody] has written it
	}
	return ok(list)
}

func nativeRedelivered(_ *Redelivery, problem string, _ string) Reply {
	return ok(v1.Redelivered{Delivered: problem == "", Problem: problem})
}
