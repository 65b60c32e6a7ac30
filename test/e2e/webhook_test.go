//go:build linux

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/procfleet/procfleet/internal/testenv"
)

// webhookTasks is the number of tasks of [TestAWebhookReceivesEveryEvent], each with two events.
var webhookTasks = flag.Int("webhook.tasks", unlessLong(50, 150), "number of tasks in TestAWebhookReceivesEveryEvent")

// webhookReceiver verifies and records the requests to a webhook.
type webhookReceiver struct {
	t        *testing.T
	mu       sync.Mutex
	verifier *standardwebhooks.Webhook
	failures int            // number of requests that it still refuses
	requests int            // number of requests that it has accepted
	seen     map[string]int // number of requests for each webhook-id
	numbers  map[string][]int
	ended    map[string]bool
}

func (r *webhookReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures > 0 {
		r.failures--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var message struct {
		Type string
		Data struct {
			ID, Task string
			Number   int
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &message)
	}
	if err == nil {
		err = r.verifier.Verify(body, request.Header)
	}
	if id := request.Header.Get("webhook-id"); err != nil || id != message.Data.ID {
		r.t.Errorf("request %q: %v in %s", id, err, body)
		return
	}
	r.requests++
	if r.seen[message.Data.ID]++; r.seen[message.Data.ID] == 1 {
		r.numbers[message.Data.Task] = append(r.numbers[message.Data.Task], message.Data.Number)
		r.ended[message.Data.Task] = message.Type == "task.finished"
	}
}

func (r *webhookReceiver) has(tasks []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(tasks, func(id string) bool { return !r.ended[id] })
}

// newWebhookReceiver sets a webhook, and returns its receiver.
func newWebhookReceiver(t *testing.T, c *client, failures int) *webhookReceiver {
	t.Helper()
	r := &webhookReceiver{t: t, failures: failures, seen: map[string]int{}, numbers: map[string][]int{}, ended: map[string]bool{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	var set struct{ Secret string }
	status, data, ok := c.call(http.MethodPut, "/v1/webhooks/receiver", "", map[string]any{"url": server.URL})
	if err := json.Unmarshal(data, &set); err != nil || !ok || status != http.StatusOK {
		t.Fatalf("set a webhook: %d %s %v", status, data, err)
	}
	var err error
	if r.verifier, err = standardwebhooks.NewWebhook(set.Secret); err != nil {
		t.Fatal(err)
	}
	return r
}

// persist submits an operation with an idempotency key until it is accepted.
func (c *client) persist(key string, body any) (id string) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		status, data, ok := c.call(http.MethodPost, "/v1/tasks", key, body)
		if !ok || status/100 != 2 {
			return false
		}
		id = taskID(c.t, data)
		return true
	}, "an operation is accepted")
	return id
}

// TestAWebhookReceivesEveryEvent kills a dispatcher after the receiver has accepted an event and
// before its position is stored, and later the broker, a worker and another dispatcher, and restarts
// Redis. The receiver, which also fails once, must receive each event of each task, in their order.
func TestAWebhookReceivesEveryEvent(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	dying, first := f.dispatcher("dispatcher.sent", "--submissions=false", "--audit-required")
	working := f.worker("")
	f.simulate(10, "0s")
	f.waitListed(first, 10)
	receiver := newWebhookReceiver(t, first, 1)
	tasks := []string{first.submit(simulated(10))}
	dying.Wait(t, finishTimeout)
	second, c := f.dispatcher("", "--submissions=false", "--audit-required")
	for i := 1; i < *webhookTasks; i++ {
		switch i {
		case *webhookTasks / 5:
			f.broker.Kill()
			f.broker.Start()
		case *webhookTasks * 2 / 5:
			working.Kill()
			working = f.worker("")
		case *webhookTasks * 3 / 5:
			f.redis.Stop(t)
			f.redis.Restart(t)
		case *webhookTasks * 4 / 5:
			second.Kill()
			second, c = f.dispatcher("", "--submissions=false", "--audit-required")
		}
		tasks = append(tasks, c.persist(fmt.Sprint("task-", i), simulated(1)))
	}
	testenv.Eventually(t, finishTimeout+time.Duration(*webhookTasks)*20*time.Millisecond, func() bool { return receiver.has(tasks) }, "the ends of all tasks are received")
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	events := 0
	for _, id := range tasks {
		numbers := receiver.numbers[id]
		events += len(numbers)
		if !slices.Equal(numbers, []int{1, 2}) {
			t.Errorf("task %s: events %v", id, numbers)
		}
	}
	if receiver.requests == events {
		t.Error("the event of the dispatcher that died was not repeated")
	}
	t.Logf("%d events in %d requests", events, receiver.requests)
}
