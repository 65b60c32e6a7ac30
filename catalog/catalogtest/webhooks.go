package catalogtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

func webhookChecks() []Check {
	return []Check{
		{Name: "webhooks are kept whole and in order", Fn: webhooksWhole},
		{Name: "a webhook is replaced without its state, and removed with it", Fn: webhooksReplaced},
		{Name: "dead deliveries are kept in order until they are removed", Fn: deadInOrder},
		{Name: "the newest dead deliveries are kept", Fn: newestDead, Heavy: true},
		{Name: "invalid webhooks are refused", Fn: webhooksRefused},
	}
}

func wholeWebhook(application, name string) catalog.Webhook {
	at := time.Date(2026, 11, 28, 5, 35, 22, 123456000, time.UTC)
	return catalog.Webhook{
		Application: application, Name: name, URL: "https://hooks.example:8443/a?b=c", Business: "2", Paused: true, User: "admin", SetAt: at,
		Secrets: []catalog.WebhookSecret{{Secret: "whsec_bmV3"}, {Secret: "whsec_b2xk", Until: at.Add(time.Hour)}},
		State:   catalog.WebhookState{SetAt: at, Position: 41},
	}
}

func failingState() catalog.WebhookState {
	at := time.Date(2026, 11, 28, 6, 0, 0, 0, time.UTC)
	return catalog.WebhookState{
		SetAt: at, Position: 1 << 40, Missed: 3,
		Failure: catalog.Failure{Attempts: 2, Since: at, NextAt: at.Add(time.Minute), Problem: `a "quoted" problem`, Ended: true},
	}
}

func deadAt(position uint64) *catalog.DeadDelivery {
	return &catalog.DeadDelivery{
		Position: position, Event: fmt.Sprintf("GSETASK:20261128033000:1/%d", position), Body: json.RawMessage(`{"type":"task.held"}`),
		Problem: "503 Service Unavailable", At: time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC),
	}
}

func setWebhook(ctx context.Context, t T, s Subject, w catalog.Webhook) {
	t.Helper()
	must(t, s.SetWebhook(ctx, w), "set a webhook")
}

func recordDelivery(ctx context.Context, t T, s Subject, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) {
	t.Helper()
	must(t, s.RecordDelivery(ctx, "shop", name, state, dead), "record a delivery")
}

func webhooks(ctx context.Context, t T, s Subject) []catalog.Webhook {
	t.Helper()
	all, err := s.Webhooks(ctx)
	must(t, err, "webhooks")
	return all
}

func deadDeliveries(ctx context.Context, t T, s Subject, name string) []catalog.DeadDelivery {
	t.Helper()
	all, err := s.DeadDeliveries(ctx, "shop", name)
	must(t, err, "dead deliveries")
	return all
}

func webhooksWhole(ctx context.Context, t T, s Subject) {
	want := []catalog.Webhook{wholeWebhook("", "a"), wholeWebhook("shop", "a"), wholeWebhook("shop", "b"), wholeWebhook("shop2", "a")}
	for _, w := range slices.Backward(want) {
		setWebhook(ctx, t, s, w)
	}
	equal(t, "webhooks", webhooks(ctx, t, s), want)
	want[2].State = failingState()
	recordDelivery(ctx, t, s, "b", failingState(), nil)
	equal(t, "webhooks after a failure", webhooks(ctx, t, s), want)
}

func webhooksReplaced(ctx context.Context, t T, s Subject) {
	setWebhook(ctx, t, s, wholeWebhook("shop", "a"))
	recordDelivery(ctx, t, s, "a", failingState(), deadAt(7))
	other := wholeWebhook("shop", "a")
	other.URL, other.Business, other.Secrets = "http://other.example", "", other.Secrets[:1]
	setWebhook(ctx, t, s, other)
	other.State, other.Dead = failingState(), 1
	equal(t, "after the change", webhooks(ctx, t, s), []catalog.Webhook{other})
	for _, want := range []bool{true, false} {
		existed, err := s.RemoveWebhook(ctx, "shop", "a")
		must(t, err, "remove a webhook")
		equal(t, "existed", existed, want)
	}
	recordDelivery(ctx, t, s, "a", failingState(), deadAt(8))
	setWebhook(ctx, t, s, wholeWebhook("shop", "a"))
	equal(t, "set again", webhooks(ctx, t, s), []catalog.Webhook{wholeWebhook("shop", "a")})
	equal(t, "dead deliveries of one that is set again", len(deadDeliveries(ctx, t, s, "a")), 0)
}

func deadInOrder(ctx context.Context, t T, s Subject) {
	setWebhook(ctx, t, s, wholeWebhook("shop", "a"))
	setWebhook(ctx, t, s, wholeWebhook("shop", "ab"))
	state := catalog.WebhookState{Position: 300}
	for _, position := range []uint64{300, 9, 20, 9} {
		recordDelivery(ctx, t, s, "a", state, deadAt(position))
	}
	equal(t, "dead deliveries", deadDeliveries(ctx, t, s, "a"), []catalog.DeadDelivery{*deadAt(9), *deadAt(20), *deadAt(300)})
	equal(t, "dead deliveries of another", len(deadDeliveries(ctx, t, s, "ab")), 0)
	for range 2 {
		must(t, s.RemoveDead(ctx, "shop", "a", 20), "remove a dead delivery")
	}
	equal(t, "dead deliveries after a removal", deadDeliveries(ctx, t, s, "a"), []catalog.DeadDelivery{*deadAt(9), *deadAt(300)})
	all := webhooks(ctx, t, s)
	equal(t, "number of dead deliveries", []int{all[0].Dead, all[1].Dead}, []int{2, 0})
	equal(t, "state", all[0].State, state)
}

func newestDead(ctx context.Context, t T, s Subject) {
	setWebhook(ctx, t, s, wholeWebhook("shop", "a"))
	for position := range uint64(catalog.MaxDeadDeliveries + 2) {
		recordDelivery(ctx, t, s, "a", catalog.WebhookState{Position: position}, deadAt(position))
	}
	dead := deadDeliveries(ctx, t, s, "a")
	equal(t, "number of dead deliveries", []int{len(dead), webhooks(ctx, t, s)[0].Dead}, []int{catalog.MaxDeadDeliveries, catalog.MaxDeadDeliveries})
	equal(t, "first dead delivery", dead[0].Position, uint64(2))
}

func webhooksRefused(ctx context.Context, t T, s Subject) {
	for what, change := range map[string]func(*catalog.Webhook){
		"an application":   func(w *catalog.Webhook) { w.Application = "a\x00b" },
		"without a name":   func(w *catalog.Webhook) { w.Name = "" },
		"a name":           func(w *catalog.Webhook) { w.Name = "a b" },
		"a scheme":         func(w *catalog.Webhook) { w.URL = "ftp://a" },
		"without a host":   func(w *catalog.Webhook) { w.URL = "https:///a" },
		"a user":           func(w *catalog.Webhook) { w.URL = "https://u:p@a/" },
		"a long URL":       func(w *catalog.Webhook) { w.URL = "https://a/" + strings.Repeat("x", 2048) },
		"without a secret": func(w *catalog.Webhook) { w.Secrets = nil },
		"three secrets":    func(w *catalog.Webhook) { w.Secrets = append(w.Secrets, w.Secrets[0]) },
	} {
		invalid := wholeWebhook("shop", "a")
		change(&invalid)
		if err := s.SetWebhook(ctx, invalid); err == nil {
			t.Errorf("%s: the webhook was stored", what)
		}
	}
	equal(t, "number of webhooks", len(webhooks(ctx, t, s)), 0)
}
