package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestSessionsAreOfOneKeyAndEnd(t *testing.T) {
	key := make([]byte, KeySize)
	own, err := newSessions(key)
	if err != nil {
		t.Fatal(err)
	}
	same, _ := newSessions(key)
	other, _ := newSessions(append([]byte{1}, key[1:]...))
	request := func(s *session) *http.Request {
		t.Helper()
		sealed, err := own.seal(s)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: sealed})
		return r
	}
	valid := request(&session{Token: "ops.secret", Until: time.Now().Add(time.Hour)})
	if got := same.of(valid); got == nil || got.application() != "ops" {
		t.Errorf("another console with the key: %+v", got)
	}
	if other.of(valid) != nil {
		t.Error("a console with another key accepts the session")
	}
	if own.of(request(&session{Token: "ops.secret", Until: time.Now().Add(-time.Second)})) != nil {
		t.Error("a session is accepted after its end")
	}
	if _, err := newSessions(key[1:]); err == nil {
		t.Error("a short key is accepted")
	}
}

func TestASignInLeadsOnlyToPagesOfTheConsole(t *testing.T) {
	for next, want := range map[string]string{
		"":                      Prefix,
		"/ui/tasks?state=held":  "/ui/tasks?state=held",
		"https://evil.example/": Prefix,
		"//evil.example/ui/":    Prefix,
		"/v1/tasks":             Prefix,
		`/ui/\evil.example`:     Prefix,
		"javascript:alert(1)":   Prefix,
		"/ui/../v1/tasks":       Prefix,
	} {
		if got := ownPath(next); got != want {
			t.Errorf("ownPath(%q) = %q, want %q", next, got, want)
		}
	}
}
