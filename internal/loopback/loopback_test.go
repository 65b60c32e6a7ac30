package loopback_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/procfleet/procfleet/internal/loopback"
)

func TestAServerOnLoopbackHasNoOtherName(t *testing.T) {
	t.Parallel()
	handler := loopback.OnlyNames(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for name, want := range map[string]int{
		"127.0.0.1:8080": 200, "localhost": 200, "[::1]:8080": 200, "[::1]": 200, "127.8.8.8": 200,
		"evil.example:8080": 403, "evil.example": 403, "localhost.evil.example": 403, "": 403, "10.0.0.1": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = name
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %q: %d, want %d", name, w.Code, want)
		}
	}
}
