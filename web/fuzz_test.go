package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/sirupsen/logrus"
)

// FuzzRequest sends requests for pages and buttons with foreign cookies and forms. The API behind the
// console answers each call with an empty object.
func FuzzRequest(f *testing.F) {
	f.Add("operate", "action=stop&select=a*&hosts=0:10.0.0.1 x&window=10%25&failures=1&timeout=5m&queue_for=1h&plan=1", "session")
	f.Add("operate", "namespace=a&name=b&hosts=10.0.0.1&timeout=x&plan=1", "")
	f.Add("hosts/0:10.0.0.1", "business=1.2", "AAAA")
	f.Add("tasks/GSETASK:20260101000000:1", "state=failed&after=x", "AAAA")
	f.Add("catalog", "business=x.y", "")
	f.Add("search", "q=2:::1", "")
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	log := logrus.New()
	log.SetOutput(f.Output())
	c, err := New(Config{API: api, Log: log})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, form, cookie string) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r := httptest.NewRequest(method, Prefix, nil)
			r.URL = &url.URL{Path: Prefix + path, RawQuery: form}
			r.AddCookie(&http.Cookie{Name: sessionCookie, Value: cookie})
			w := httptest.NewRecorder()
			c.ServeHTTP(w, r)
			if w.Code == http.StatusInternalServerError {
				t.Errorf("%s %s?%s: %s", method, path, form, w.Body)
			}
		}
	})
}
