package bench

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAReadyAnswerOfWhoHandsOverIsNotTakenForTheDispatchers checks that a response with
// "Connection: close" is an error. Otherwise the next request on this connection fails.
func TestAReadyAnswerOfWhoHandsOverIsNotTakenForTheDispatchers(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ready") }))
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	defer server.Close()
	w, err := dial(t.Context(), server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.call(http.MethodGet, "/readyz", "", nil, func(io.Reader) error { return nil }); !errors.Is(err, errLastAnswer) {
		t.Errorf("%v, want %v", err, errLastAnswer)
	}
}
