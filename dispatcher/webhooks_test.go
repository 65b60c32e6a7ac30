package dispatcher

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
)

// TestTheSecretOfAWebhookIsShownOnce: and again only when it is replaced.
func TestTheSecretOfAWebhookIsShownOnce(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.TaskFeed = noTaskEvents{}
	store := openStore(t)
	d := startServer(t, cfg, store, &fakeQueue{})
	free, plain := bkapi("bk_app_code", "free", "bk_app_secret", "s3cret"), bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret", "bk_username", "ann")
	set := func(body string, header []string) map[string]any {
		t.Helper()
		a := d.call(http.MethodPut, "/v1/webhooks/hook", body, header...)
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.text)
		}
		return a.body
	}
	first := set(`{"url":"https://hooks.example/a"}`, free)
	again := set(`{"url":"https://hooks.example/b"}`, free)
	rotated := set(`{"url":"https://hooks.example/b","rotate_secret":true}`, free)
	other := set(`{"url":"https://hooks.example/a"}`, plain)
	if first["secret"] == nil || again["secret"] != nil || rotated["secret"] == nil || rotated["secret"] == first["secret"] || other["secret"] == first["secret"] {
		t.Errorf("secrets %v, %v, %v, %v", first["secret"], again["secret"], rotated["secret"], other["secret"])
	}
	if again["old_secret_until"] != nil || rotated["old_secret_until"] == nil {
		t.Errorf("old secrets until %v, %v", again["old_secret_until"], rotated["old_secret_until"])
	}
	a := d.call(http.MethodGet, "/v1/webhooks", "", free...)
	list, _ := a.body["webhooks"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["url"] != "https://hooks.example/b" || list[0].(map[string]any)["secret"] != nil {
		t.Errorf("webhooks of one application: %s", a.text)
	}
	if a := d.call(http.MethodDelete, "/v1/webhooks/hook", "", free...); a.body["removed"] != true {
		t.Errorf("removal: %s", a.text)
	}
	if a := d.call(http.MethodGet, "/v1/webhooks", "", plain...); len(a.body["webhooks"].([]any)) != 1 {
		t.Errorf("webhooks of the other application: %s", a.text)
	}
}

// TestADeadDeliveryIsSentAgain: it stays dead until the receiver accepts it.
func TestADeadDeliveryIsSentAgain(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !works.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.Header.Get("webhook-id") != "GSETASK:20261121053522:1/2" || r.Header.Get("webhook-signature") == "" {
			t.Errorf("headers %v", r.Header)
		}
	}))
	defer receiver.Close()
	cfg := testConfig(t)
	cfg.TaskFeed, cfg.Webhooks = noTaskEvents{}, destination.Anywhere()
	store := openStore(t)
	d := startServer(t, cfg, store, &fakeQueue{})
	if a := d.call(http.MethodPut, "/v1/webhooks/hook", `{"url":"`+receiver.URL+`"}`); a.status != http.StatusOK {
		t.Fatal(a.text)
	}
	body := []byte(`{"type":"task.finished","timestamp":"2026-11-21T05:35:30Z","data":{"id":"GSETASK:20261121053522:1/2","number":2,"task":"GSETASK:20261121053522:1","kind":"finished","at":"2026-11-21T05:35:30Z","actions":["start"],"items":1}}`)
	dead := catalog.DeadDelivery{Position: 5, Event: "GSETASK:20261121053522:1/2", Body: body, Problem: "down"}
	if err := store.RecordDelivery(t.Context(), "", "hook", catalog.WebhookState{Position: 5}, &dead); err != nil {
		t.Fatal(err)
	}
	redeliver := func(event string) answer {
		t.Helper()
		return d.call(http.MethodPost, "/v1/webhooks/hook/redeliver", `{"event":"`+event+`"}`)
	}
	if a := redeliver("GSETASK:20261121053522:1/2"); a.body["delivered"] != false || a.body["problem"] == "" {
		t.Errorf("while the receiver is down: %s", a.text)
	}
	if a := redeliver("GSETASK:20261121053522:1/3"); a.status != http.StatusNotFound {
		t.Errorf("an event that is not dead: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodGet, "/v1/webhooks/hook/dead", ""); len(a.body["dead"].([]any)) != 1 {
		t.Errorf("dead deliveries: %s", a.text)
	}
	works.Store(true)
	if a := redeliver("GSETASK:20261121053522:1/2"); a.body["delivered"] != true {
		t.Errorf("when the receiver works: %s", a.text)
	}
	if a := d.call(http.MethodGet, "/v1/webhooks/hook/dead", ""); len(a.body["dead"].([]any)) != 0 {
		t.Errorf("dead deliveries: %s", a.text)
	}
	if a := d.call(http.MethodGet, "/v1/webhooks/none/dead", ""); a.status != http.StatusNotFound {
		t.Errorf("a webhook that does not exist: %d %s", a.status, a.text)
	}
}

// TestAWebhookGetsOnlyWhatItsApplicationMaySee: "elsewhere" may act for business 3 only.
func TestAWebhookGetsOnlyWhatItsApplicationMaySee(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	addElsewhere(t, cfg.AppsFile)
	d, err := New(cfg, openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	a := d.firing.api
	for _, test := range []struct {
		webhook catalog.Webhook
		event   audit.Record
		want    bool
		wrong   bool
	}{
		{catalog.Webhook{Application: "elsewhere"}, audit.Record{Application: "elsewhere", Business: "3"}, true, false},
		{catalog.Webhook{Application: "elsewhere"}, audit.Record{Application: "free", Business: "3"}, true, false},
		{catalog.Webhook{Application: "elsewhere"}, audit.Record{Application: "free", Business: "2"}, false, false},
		{catalog.Webhook{Application: "free"}, audit.Record{Application: "elsewhere", Business: "3"}, true, false},
		{catalog.Webhook{Application: "free", Business: "2"}, audit.Record{Application: "elsewhere", Business: "3"}, false, false},
		{catalog.Webhook{Application: "gone"}, audit.Record{Application: "free", Business: "2"}, false, true},
	} {
		got, err := a.webhookSelects(&test.webhook, &bus.TaskEvent{Record: test.event})
		if got != test.want || (err != nil) != test.wrong {
			t.Errorf("%+v of %+v: %v, %v", test.webhook, test.event, got, err)
		}
	}
}
