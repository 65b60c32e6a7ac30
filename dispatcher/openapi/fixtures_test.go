package openapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/dialect/dialecttest"
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
	status    int
	answer    json.RawMessage
}

// record reads the fixtures of a dialect.
func record(t *testing.T, doc *openapitest.Document, d *dialect.Dialect) []recorded {
	t.Helper()
	var all []recorded
	for _, file := range dialecttest.Read(t, filepath.Join("..", "dialect", "testdata", d.Name)) {
		for _, c := range file.Cases {
			all = append(all, recordCase(t, doc, d, c))
		}
	}
	return all
}

func recordCase(t *testing.T, doc *openapitest.Document, d *dialect.Dialect, c *dialecttest.Case) recorded {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.Section(dialecttest.Response))), c.Request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	path := c.Request.URL.EscapedPath()
	return recorded{
		name: d.Name + "/" + c.Name, operation: doc.Find(c.Request.Method, path), accepted: c.Section(dialecttest.Decoded) != nil,
		path: path, query: c.Request.URL.Query(), header: c.Request.Header, body: c.Body,
		status: response.StatusCode, answer: answer,
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
