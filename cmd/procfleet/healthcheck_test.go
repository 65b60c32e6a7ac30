package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/cmd/internal/command"
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
		server.URL + "/other":  command.ExitFailed,
		"http://127.0.0.1:1/":  command.ExitFailed,
		"http://%zz":           command.ExitUsage,
	} {
		var said strings.Builder
		if code := run(t.Context(), []string{"healthcheck", url}, io.Discard, &said); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", url, code, want, said.String())
		}
	}
}
