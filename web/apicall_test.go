package web

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// TestCallsOfTheConsoleHaveTheConnectionOfTheViewer: the API authenticates local callers by the context of
// the connection, and trusts and records addresses.
func TestCallsOfTheConsoleHaveTheConnectionOfTheViewer(t *testing.T) {
	var got *http.Request
	var body string
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body = string(text)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		w.WriteHeader(http.StatusOK) // ignored, as by a server
		_, _ = w.Write([]byte(`{"error":`))
		_, _ = w.Write([]byte(`{"code":"conflict","message":"no"}}`))
	})
	c, err := New(Config{API: api, Log: logrus.New()})
	if err != nil {
		t.Fatal(err)
	}
	type account struct{} // as package auth adds one to the context of a connection
	ctx := context.WithValue(t.Context(), account{}, "uid 1000")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/ui/tasks/GSETASK:20261121053522:123456/pause?if_seq=3", strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = "192.0.2.7:41000"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := &response{header: make(http.Header)}
	c.ServeHTTP(w, r)
	if w.status != http.StatusConflict || !strings.Contains(w.body.String(), "no") {
		t.Errorf("%d %s", w.status, w.body.String())
	}
	if got.Context().Value(account{}) != "uid 1000" {
		t.Error("the API does not know the account of the viewer")
	}
	if got.RemoteAddr != r.RemoteAddr || got.Method != http.MethodPost || got.URL.Path != "/v1/tasks/GSETASK:20261121053522:123456/pause" || !strings.Contains(body, `"if_seq":3`) {
		t.Errorf("the API has received %s %s from %s: %s", got.Method, got.URL, got.RemoteAddr, body)
	}
}
