//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
)

// TestADeadDeliveryIsSentAgainInTheConsole: a delivery is dead after 72 hours, so the test stores one.
func TestADeadDeliveryIsSentAgainInTheConsole(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	var accepted atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if works.Load() {
			accepted.Add(1)
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(receiver.Close)
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	if status, data, ok := c.call(http.MethodPut, "/v1/webhooks/hook", "", map[string]any{"url": receiver.URL}); !ok || status != http.StatusOK {
		t.Fatalf("set a webhook: %d %s", status, data)
	}
	store, err := stores.OpenRedis(t.Context(), redisconn.Options{URL: f.redis.URL(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	dead := catalog.DeadDelivery{Position: 1, Event: "GSETASK:20261121053522:1/2", Problem: "answered 503", Body: []byte(
		`{"type":"task.finished","timestamp":"2026-11-21T05:35:30Z","data":{"id":"GSETASK:20261121053522:1/2","number":2,"task":"GSETASK:20261121053522:1","kind":"finished","at":"2026-11-21T05:35:30Z","actions":["start"],"items":1}}`)}
	if err := store.RecordDelivery(t.Context(), "", "hook", catalog.WebhookState{Position: 1}, &dead); err != nil {
		t.Fatal(err)
	}

	b := newBrowser(t, c.url)
	b.open("webhooks")
	again := `form[action="/ui/webhooks/hook/redeliver"] button`
	b.waitText("main", "answered 503")
	b.click(again)
	b.waitText("main", "503") // the page that says why
	b.open("webhooks")
	works.Store(true)
	b.click(again)
	b.waitFor("!document.querySelector('form[action$=redeliver]')")
	if n := accepted.Load(); n != 1 {
		t.Errorf("the receiver accepted %d deliveries, want 1", n)
	}
}

func TestAScheduleIsPausedAndResumedInTheConsole(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	body := map[string]any{"cron": "0 3 * * *", "task": map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(1)}}
	namespace := simulatedSpec()["namespace"].(string)
	if status, data, ok := c.call(http.MethodPut, "/v1/schedules/"+namespace+"/nightly", "", body); !ok || status != http.StatusOK {
		t.Fatalf("set a schedule: %d %s", status, data)
	}
	paused := func() bool {
		t.Helper()
		var list struct {
			Schedules []struct {
				Paused bool
				Cron   string
			}
		}
		status, data, ok := c.call(http.MethodGet, "/v1/schedules/"+namespace, "", nil)
		if err := json.Unmarshal(data, &list); err != nil || !ok || len(list.Schedules) != 1 || list.Schedules[0].Cron != "0 3 * * *" {
			t.Fatalf("schedules: %d %s %v", status, data, err)
		}
		return list.Schedules[0].Paused
	}
	b := newBrowser(t, c.url)
	b.open("rules?namespace=" + namespace)
	button := `#schedules form[action="/ui/rules/pause"] button`
	b.click(button)
	b.waitFor("document.querySelector('#schedules .badge.held')")
	if !paused() {
		t.Error("the schedule is not paused")
	}
	b.click(button)
	b.waitFor("!document.querySelector('#schedules .badge.held')")
	if paused() {
		t.Error("the schedule is still paused")
	}
}

// TestTheConsoleNamesThePartThatFails kills the worker, then NATS and Redis, and starts them again.
func TestTheConsoleNamesThePartThatFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	worker := f.worker("")
	b := newBrowser(t, c.url)
	b.open("")
	works := func(part string) { t.Helper(); b.waitFor("document.querySelector('#" + part + " .badge.up')") }
	for _, part := range []string{"nats", "store", "workers", "index"} {
		works(part)
	}
	worker.Kill()
	b.waitText("#workers", "start a worker")
	f.worker("")
	works("workers")
	f.broker.Kill()
	b.waitText("#nats", "NATS is unavailable")
	f.broker.Start()
	works("nats")
	works("workers")
	f.redis.Stop(t)
	b.waitText("#store", "the task store is unavailable")
	f.redis.Restart(t)
	works("store")
	works("index")
}
