package dispatcher

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi"
	"github.com/procfleet/procfleet/dispatcher/openapi/openapitest"
)

var describedOnce = sync.OnceValues(func() (*openapitest.Document, error) {
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

// description returns the OpenAPI document. Every testServer checks its responses, and the requests
// that it accepts, against it.
func description(t *testing.T) *openapitest.Document {
	t.Helper()
	doc, err := describedOnce()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// asDescribed returns an error if an accepted request or the response to a request does not match
// the description.
func asDescribed(doc *openapitest.Document, r *http.Request, body string, a *answer) error {
	operation := doc.Find(r.Method, r.URL.Path)
	if operation == nil {
		return nil
	}
	granted := a.status < http.StatusMultipleChoices && a.body["result"] != false
	if granted {
		if err := operation.CheckRequest(r.URL.Path, r.URL.Query(), r.Header, []byte(body)); err != nil {
			return err
		}
	}
	return operation.CheckAnswer(a.status, a.header, []byte(a.text))
}

// The description needs no credentials, also if all other calls do.
func TestTheDescriptionIsOpenToEverybody(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Version = "1.2.3-test"
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	for _, c := range []struct{ path, contentType, has string }{
		{"/openapi.json", "application/json", `"version":"1.2.3-test"`},
		{"/docs", "text/html; charset=utf-8", "Version 1.2.3-test."},
	} {
		got := d.call(http.MethodGet, c.path, "")
		if got.status != http.StatusOK || got.header.Get("Content-Type") != c.contentType || !strings.Contains(got.text, c.has) {
			t.Errorf("%s: %d %s without %s", c.path, got.status, got.header.Get("Content-Type"), c.has)
		}
		tag := got.header.Get("ETag")
		if tag == "" || got.header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: ETag %q, Cache-Control %q", c.path, tag, got.header.Get("Cache-Control"))
		}
		if again := d.call(http.MethodGet, c.path, "", "If-None-Match", tag); again.status != http.StatusNotModified || again.text != "" {
			t.Errorf("%s again: %d %q", c.path, again.status, again.text)
		}
		if policy := got.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") {
			t.Errorf("%s: Content-Security-Policy %q", c.path, policy)
		}
		if wrong := d.call(http.MethodPost, c.path, "{}"); wrong.status == http.StatusOK {
			t.Errorf("POST %s is answered", c.path)
		}
	}
	unfollowed := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		root, err := d.tryWith(unfollowed, method, "/", "", nil)
		if err != nil {
			t.Error(err)
		}
		if root.status != http.StatusFound || root.header.Get("Location") != "/ui/" {
			t.Errorf("%s /: %d, Location %q, want a redirect to /ui/", method, root.status, root.header.Get("Location"))
		}
	}
	if post := d.call(http.MethodPost, "/", "{}"); post.status != http.StatusNotFound {
		t.Errorf("POST /: %d", post.status)
	}
	if _, err := openapitest.Open([]byte(d.call(http.MethodGet, "/openapi.json", "").text)); err != nil {
		t.Error(err)
	}
}

func TestADispatcherWithoutAConsoleLeadsToTheDescription(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.NoConsole = true
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	for _, path := range []string{"/ui", "/ui/", "/ui/tasks"} {
		if got := d.call(http.MethodGet, path, ""); got.status != http.StatusNotFound {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	unfollowed := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	root, err := d.tryWith(unfollowed, http.MethodGet, "/", "", nil)
	if err != nil || root.status != http.StatusFound || root.header.Get("Location") != "/docs" {
		t.Errorf("/: %v %d, Location %q", err, root.status, root.header.Get("Location"))
	}
}
