//go:build linux

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi"
	"github.com/procfleet/procfleet/dispatcher/openapi/openapitest"
)

var description = sync.OnceValues(func() (*openapitest.Document, error) {
	api, err := openapi.New(dialect.All(), "test")
	if err != nil {
		return nil, err
	}
	text, err := api.JSON()
	if err != nil {
		return nil, err
	}
	return openapitest.Open(text)
})

// asDescribed compares every response, and every accepted request, with the OpenAPI
// document.
func asDescribed(t *testing.T, req *http.Request, resp *http.Response, answer []byte) {
	t.Helper()
	doc, err := description()
	if err != nil {
		t.Fatal(err)
	}
	operation := doc.Find(req.Method, req.URL.Path)
	if operation == nil || resp.Header.Get("X-Bkapi-Request-Id") == "" {
		return // the path does not exist, or the dispatcher is not ready yet
	}
	if err := operation.CheckAnswer(resp.StatusCode, resp.Header, answer); err != nil {
		t.Errorf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	var failed struct{ Result *bool }
	if resp.StatusCode >= http.StatusMultipleChoices || json.Unmarshal(answer, &failed) == nil && failed.Result != nil && !*failed.Result {
		return
	}
	body := io.NopCloser(http.NoBody)
	if req.GetBody != nil {
		if body, err = req.GetBody(); err != nil {
			t.Fatal(err)
		}
	}
	sent, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	if req.Method == http.MethodGet && len(sent) > 0 && !operation.TakesBody() {
		return // the ESB accepts parameters of a GET in a body, which the document omits
	}
	if err := operation.CheckRequest(req.URL.Path, req.URL.Query(), req.Header, sent); err != nil {
		t.Errorf("%s %s was accepted: %v", req.Method, req.URL.Path, err)
	}
}

// TestTheServedDescriptionMatchesTheAPI checks that the document of the built program is
// valid, and that each operation, called with its own example, responds as
// described.
func TestTheServedDescriptionMatchesTheAPI(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	status, text, ok := u.c.call(http.MethodGet, "/openapi.json", "", nil)
	if !ok || status != http.StatusOK {
		t.Fatalf("GET /openapi.json: %d", status)
	}
	doc, err := openapitest.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	id := u.c.submit(map[string]any{
		"action": "status", "hosts": []string{"0:10.0.0.1"},
		"process": map[string]any{"namespace": "shop", "name": "web", "proc_name": "nginx", "setup_path": "/srv/web"},
	})
	asked := make(map[string]bool) // names of calls
	operations := doc.Operations()
	slices.SortStableFunc(operations, func(a, b *openapitest.Operation) int { // prerequisites of other operations first
		return cmp.Compare(byThemselves(a), byThemselves(b))
	})
	for _, o := range operations {
		asked[o.Call] = true
		u.askAsShown(o, id)
	}
	for _, d := range dialect.All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				if !asked[call.Name] {
					t.Errorf("%s is not in the served document", call.Name)
				}
			}
		}
	}
	if status, page, ok := u.c.call(http.MethodGet, "/docs", "", nil); !ok || status != http.StatusOK || !bytes.Contains(page, []byte(`id="gse.operate_proc_multi"`)) {
		t.Errorf("GET /docs: %d, %d bytes", status, len(page))
	}
}

// shownTask is the task of the examples.
const shownTask = "GSETASK:20261121053522:123456"

// askAsShown sends the example of an operation, with an existing task.
func (u *up) askAsShown(o *openapitest.Operation, task string) {
	u.t.Helper()
	query, body, err := o.Example()
	if err != nil {
		u.t.Fatal(err)
	}
	for name := range query {
		query.Set(name, strings.ReplaceAll(query.Get(name), shownTask, task))
	}
	if o.Call == "native.task_events" {
		query.Set("last_event_id", "1000000") // has expired: a stream that begins does not end
	}
	path := o.Path
	if strings.HasPrefix(o.Call, "cmdb.") || o.Call == "native.drift" || o.Call == "native.delete_catalogue" {
		path, body = u.aboutAProcess(o.ID, path, body)
	}
	path = strings.NewReplacer("{id}", task, "{stage}", "prod", "{biz}", "2", "{name}", "nightly").Replace(path)
	ctx, cancel := context.WithTimeout(u.t.Context(), finishTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, o.Method, u.c.url+path+"?"+query.Encode(), bytes.NewReader(bytes.ReplaceAll(body, []byte(shownTask), []byte(task))))
	if err != nil {
		u.t.Fatal(err)
	}
	req.Header.Set("BK_USER", "admin")
	req.Header.Set("HTTP_BLUEKING_SUPPLIER_ID", "0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		u.t.Fatalf("%s: %v", o.ID, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		u.t.Fatalf("%s: %v", o.ID, err)
	}
	if err := o.CheckAnswer(resp.StatusCode, resp.Header, answer); err != nil {
		u.t.Error(err)
	}
	failed := bytes.HasPrefix(answer, []byte(`{"result":false`)) && !bytes.Contains(answer, []byte(`"code":1011003`))                                                                       // the agent of the example does not exist
	ended := resp.StatusCode == http.StatusConflict && slices.Contains([]string{"native.pause", "native.resume", "native.approve", "native.cancel", "native.retry", "native.undo"}, o.Call) // the task of the test is finished
	silent := resp.StatusCode == http.StatusServiceUnavailable && o.Call == "native.output"                                                                                                 // the host of the example has no agent
	expired := resp.StatusCode == http.StatusGone && o.Call == "native.task_events"
	delivered := resp.StatusCode == http.StatusNotFound && (o.Call == "native.redeliver" || o.Call == "native.dead") // the webhook has no dead delivery, or was removed
	if (resp.StatusCode >= http.StatusMultipleChoices || failed) && !ended && !silent && !expired && !delivered {
		u.t.Errorf("%s rejects its own example: %d %s", o.ID, resp.StatusCode, answer)
	}
}

// byThemselves returns 0 for operations that need only their example.
func byThemselves(o *openapitest.Operation) int {
	if o.Call == "native.edit_topology" { // needs a topology
		return 1
	}
	return 0
}

// aboutAProcess changes an example of the catalog to a separate process that
// exists.
func (u *up) aboutAProcess(operation, path string, body []byte) (string, []byte) {
	u.t.Helper()
	id := u.cmdb().define("0/2", fmt.Sprintf(`{"bk_process_name":%q}`, operation))
	path = strings.NewReplacer("{version}", "v3", "{account}", "0", "{business}", "2", "{process}", id, "{module}", "web", "{biz}/{id}", "2/"+id).Replace(path)
	return path, bytes.ReplaceAll(body, []byte("44,45,46,47,48"), []byte(id))
}
