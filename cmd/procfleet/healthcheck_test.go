package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthcheckSaysByItsExitCodeWhetherARoleIsReady(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			http.Error(w, "redis is away", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	for url, want := range map[string]int{
		server.URL + "/readyz": 0,
		server.URL + "/other":  exitFailed,
		"http://127.0.0.1:1/":  exitFailed,
		"http://%zz":           exitUsage,
	} {
		var said strings.Builder
		if code := run(t.Context(), []string{"healthcheck", url}, io.Discard, &said); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", url, code, want, said.String())
		}
	}
}
