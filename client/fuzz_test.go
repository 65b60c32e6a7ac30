package client_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// answering is a server that sends the same response to every request.
type answering struct {
	status     int
	retryAfter string
	body       []byte
}

func (a *answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Request: r, Body: io.NopCloser(bytes.NewReader(a.body)),
		Header: http.Header{"Retry-After": {a.retryAfter}, "X-Bkapi-Request-Id": {a.retryAfter}},
	}, nil
}

// FuzzAnswers responds to every kind of request with arbitrary data. Each call must return,
// and it may succeed only if the server responded with a success.
func FuzzAnswers(f *testing.F) {
	f.Add(200, "", []byte(`{"id":"GSETASK:20260101000000:1","state":"running","counts":{"succeeded":1},"items":1}`))
	f.Add(200, "", []byte(`{"processes":[{"id":1,"name":"n","port":80,"modules":["m"]}],"results":[{"host":"0:10.0.0.1","code":0}],"next_cursor":"","hosts":[{}],"agents":[{}]}`))
	f.Add(503, "1", []byte(`{"error":{"code":"unavailable","message":"try again","task":"GSETASK:20260101000000:1"}}`))
	f.Add(500, "", []byte(`{}`))
	f.Add(404, "Fri, 31 Dec 9999 23:59:59 GMT", []byte("<html>\xff"))
	shop := client.Business{ID: 1}
	on := client.Targets{Hosts: []procfleet.Host{host}}
	f.Fuzz(func(t *testing.T, status int, retryAfter string, body []byte) {
		server := &answering{status: 100 + int(uint(status-100)%500), retryAfter: retryAfter, body: body}
		c, err := client.New(client.Config{URL: "http://server.invalid", HTTP: &http.Client{Transport: server}, Patience: -1})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		var errs [12]error
		_, errs[0] = c.Task(ctx, "GSETASK:1:2")
		_, errs[1] = c.TaskPage(ctx, client.TaskQuery{})
		_, errs[2] = c.ResultPage(ctx, "GSETASK:1:2", client.Query{})
		_, errs[3] = c.HostPage(ctx, client.HostQuery{})
		_, errs[4] = c.Submit(ctx, statusOperation())
		_, errs[5] = c.Plan(ctx, statusOperation())
		for _, errs[6] = range c.Catalog(ctx, shop, client.CatalogQuery{}) {
			break // the server may return pages forever
		}
		_, errs[7] = c.Topology(ctx, shop)
		_, errs[8] = c.EventPage(ctx, client.EventQuery{})
		_, errs[9] = c.FreezePage(ctx, client.Query{})
		_, errs[10] = c.ProcessPage(ctx, "shop", client.Query{})
		_, errs[11] = c.AgentsOn(ctx, on)
		for i, err := range errs {
			if err == nil && server.status/100 != 2 && i != 6 {
				t.Errorf("question %d: status %d is a success", i, server.status)
			}
			if refusal, ok := errors.AsType[*client.Error](err); ok && (refusal.Message == "" || refusal.RetryAfter < 0) {
				t.Errorf("question %d: refused with %+v", i, refusal)
			}
		}
	})
}
