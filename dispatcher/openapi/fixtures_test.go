package openapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi/openapitest"
)

// document is the document of all dialects.
func document(t *testing.T) (*API, *openapitest.Document) {
	t.Helper()
	made, err := documentOnce()
	if err != nil {
		t.Fatal(err)
	}
	return made.api, made.doc
}

type madeDocument struct {
	api *API
	doc *openapitest.Document
}

var documentOnce = sync.OnceValues(func() (made madeDocument, err error) {
	if made.api, err = New(dialect.All(), "test"); err != nil {
		return made, err
	}
	text, err := made.api.JSON()
	if err != nil {
		return made, err
	}
	made.doc, err = openapitest.Open(text)
	return made, err
})

// recorded is a fixture of a dialect: a request and its response.
type recorded struct {
	name      string
	operation *openapitest.Operation // nil: the path does not exist, or the description omits the request
	accepted  bool
	path      string
	query     url.Values
	header    http.Header
	body      []byte
	isJSON    bool
	status    int
	answer    json.RawMessage
}

// record reads the fixtures of a dialect.
func record(t *testing.T, doc *openapitest.Document, d *dialect.Dialect) []recorded {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join("..", "dialect", "testdata", d.Name, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for _, folder := range folders {
		all = append(all, readFixture(t, doc, d, folder))
	}
	return all
}

func readFixture(t *testing.T, doc *openapitest.Document, d *dialect.Dialect, folder string) recorded {
	t.Helper()
	var request struct {
		Call, Path, Method, ID, Query, Text string
		ContentType                         string `json:"content_type"`
		CMDBUser                            string `json:"cmdb_user"`
		CMDBSupplier                        string `json:"cmdb_supplier"`
		Body                                json.RawMessage
	}
	var response struct {
		Status int
		Body   json.RawMessage
	}
	read(t, filepath.Join(folder, "request.json"), &request)
	read(t, filepath.Join(folder, "response.json"), &response)
	query, err := url.ParseQuery(request.Query)
	if err != nil {
		t.Fatal(err)
	}
	r := recorded{
		name: d.Name + "/" + filepath.Base(folder), path: request.Path, query: query, body: request.Body,
		header: http.Header{
			"Content-Type": {request.ContentType}, "Bk_user": {request.CMDBUser}, "Http_blueking_supplier_id": {request.CMDBSupplier},
		},
		isJSON: request.Text == "", status: response.Status, answer: response.Body,
	}
	if request.Text != "" {
		r.body = []byte(request.Text)
	}
	_, err = os.Stat(filepath.Join(folder, "decoded.json"))
	r.accepted = err == nil
	if r.path == "" {
		at := slices.IndexFunc(d.Calls, func(c dialect.Call) bool { return c.Name == request.Call })
		r.path = strings.ReplaceAll(d.Calls[at].Paths[0], "{id}", request.ID)
	}
	r.operation = doc.Find(request.Method, r.path)
	return r
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// header returns the header of a response of the dispatcher.
func header(operation *openapitest.Operation, status int) http.Header {
	h := http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Bkapi-Request-Id": {"x"}, "Location": {"/"}, "Www-Authenticate": {"x"}, "Etag": {`"1"`}}
	if streams(operation.Call) && status == http.StatusOK {
		h.Set("Content-Type", "text/event-stream")
	}
	return h
}

func TestFixturesAreAsDescribed(t *testing.T) {
	t.Parallel()
	_, doc := document(t)
	all := dialect.All()
	for i := range all {
		checked := make(map[string]bool)
		for _, r := range record(t, doc, &all[i]) {
			if r.operation == nil {
				if r.accepted {
					t.Errorf("%s: no operation is described for %s", r.name, r.path)
				}
				continue
			}
			if r.accepted {
				checked[r.operation.Call] = true
				if err := r.operation.CheckRequest(r.path, r.query, r.header, r.body); err != nil {
					t.Errorf("%s: the request is accepted, but\n%v", r.name, err)
				}
			}
			if err := r.operation.CheckAnswer(r.status, header(r.operation, r.status), r.answer); err != nil {
				t.Errorf("%s: the answer is given, but\n%v", r.name, err)
			}
		}
		for _, call := range calls(&all[i]) {
			if !checked[call] {
				t.Errorf("no fixture of %s could be checked", call)
			}
		}
	}
}

// calls are the names of a dialect's calls.
func calls(d *dialect.Dialect) []string {
	var names []string
	for _, family := range d.Reached() {
		for _, call := range family.Calls {
			if !slices.Contains(names, call.Name) {
				names = append(names, call.Name)
			}
		}
	}
	return names
}
