//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// inAreas returns a status of a process on n hosts, each in a separate cloud area.
func inAreas(n int) map[string]any {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("%d:10.99.0.1", i)
	}
	return map[string]any{
		"action": "status", "hosts": hosts,
		"process": map[string]any{"namespace": "shop", "name": "x", "proc_name": "sleep", "setup_path": "/tmp"},
	}
}

// submitUntilFinal submits until the response does not permit a retry. On a busy machine the
// queue may acknowledge too late at any time.
func (c *client) submitUntilFinal(key string, body any) (status int, answer []byte) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		var header http.Header
		var ok bool
		status, header, answer, ok = c.exchange(http.MethodPost, "/v1/tasks", key, body)
		again := status == http.StatusServiceUnavailable
		if again && header.Get("Retry-After") == "" {
			c.t.Fatalf("503 without Retry-After: %s", answer)
		}
		return ok && !again
	}, "the submission is accepted or refused")
	return status, answer
}

// accepted returns the number of tasks with a number of items.
func (c *client) accepted(items int) (n int) {
	c.t.Helper()
	for _, task := range c.tasks() {
		if task.Items == items && task.State != "rejected" {
			n++
		}
	}
	return n
}

// TestOperationOnManyAreas submits an operation in which
// every host is a chunk, over HTTP and NATS. However often a caller retries, there
// must be one task.
func TestOperationOnManyAreas(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, broker: startBroker(t), keys: newKeys(t), redis: redistest.Start(t)}
	f.programs.procfleet = testenv.BuildBinary(t, "./cmd/procfleet")
	child, c := f.dispatcher("")
	child.WaitHTTP(t, startTimeout, c.url+"/readyz")
	nc, err := nats.Connect(f.broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := nc.SubscribeSync("answers.areas")
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]int{20_000: http.StatusCreated, 40_000: http.StatusRequestEntityTooLarge} {
		body := inAreas(n)
		for range 2 {
			if status, data := c.submitUntilFinal(fmt.Sprintf("%d areas", n), body); status != want {
				t.Errorf("%d areas over HTTP: %d %s, want %d", n, status, data, want)
			}
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		msg := &nats.Msg{Subject: "procfleet.submit", Data: text, Header: nats.Header{"Procfleet-Reply-To": {answers.Subject}}}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		answer, err := answers.NextMsg(finishTimeout)
		if err != nil {
			t.Fatalf("%d areas over NATS: %v", n, err)
		}
		if got := answer.Header.Get("Procfleet-Status"); got != fmt.Sprint(want) {
			t.Errorf("%d areas over NATS: %s %s, want %d", n, got, answer.Data, want)
		}
	}
	testenv.Eventually(t, finishTimeout, func() bool { return messages(t, js, "PROCFLEET_SUBMIT") == 0 }, "both messages are acknowledged")
	if got := c.accepted(20_000); got != 2 {
		t.Errorf("%d tasks were accepted over HTTP and NATS", got)
	}
}
