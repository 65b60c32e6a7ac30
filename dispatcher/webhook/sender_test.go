package webhook

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/destination"
)

// verified reports whether the published library accepts a request with a secret.
func verified(t *testing.T, r *http.Request, body []byte, secret catalog.WebhookSecret) bool {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(secret.Secret)
	if err != nil {
		t.Fatal(err)
	}
	return verifier.Verify(body, r.Header) == nil
}

// TestEachValidSecretSigns: while a secret rotates, receivers may verify with either.
func TestEachValidSecretSigns(t *testing.T) {
	t.Parallel()
	first := Rotate(nil, time.Now())
	rotated := Rotate(first, time.Now())
	overdue := Rotate(first, time.Now().Add(-rotation-time.Minute))
	for name, test := range map[string]struct {
		secrets  []catalog.WebhookSecret
		new, old bool
	}{
		"one secret":       {first, false, true},
		"while it rotates": {rotated, true, true},
		"after a day":      {overdue, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if got := verified(t, r, body, first[0]); got != test.old {
					t.Errorf("verified with the old secret: %v", got)
				}
				if got := len(test.secrets) > 1 && verified(t, r, body, test.secrets[0]); got != test.new {
					t.Errorf("verified with the new secret: %v", got)
				}
				if r.Header.Get("webhook-id") != "T/2" || string(body) != `{"type":"task.held"}` || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%v %s", r.Header, body)
				}
			}))
			defer server.Close()
			s := NewSender(destination.Anywhere(), nil)
			defer s.Close()
			w := &catalog.Webhook{URL: server.URL, Secrets: test.secrets}
			if err := s.Send(t.Context(), w, "T/2", []byte(`{"type":"task.held"}`)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOnlyStatus2xxAcceptsAnEvent(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/307":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/410":
			w.WriteHeader(http.StatusGone)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	s := NewSender(destination.Anywhere(), nil)
	defer s.Close()
	for path, want := range map[string]string{"/204": "", "/307": "answered 307", "/410": "410 Gone", "/503?key=secret": "answered 503"} {
		err := s.Send(t.Context(), &catalog.Webhook{URL: server.URL + path, Secrets: Rotate(nil, time.Now())}, "T/1", nil)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if errors.Is(err, errGone) != (path == "/410") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAWebhookReachesNoLocalServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") }))
	defer server.Close()
	policy, err := destination.Parse("dispatchers with --webhook-allow", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender(policy, nil)
	defer s.Close()
	err = s.Send(t.Context(), &catalog.Webhook{URL: server.URL, Secrets: Rotate(nil, time.Now())}, "T/1", nil)
	if !destination.Refused(err) || !strings.Contains(err.Error(), "start dispatchers with --webhook-allow 127.0.0.1") {
		t.Error(err)
	}
}
