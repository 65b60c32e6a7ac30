package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestWhatIsRememberedOfSignaturesOutlastsThemAndHasBounds(t *testing.T) {
	t.Parallel()
	var s replays
	now := time.Now()
	if !s.first([32]byte{1}, now) {
		t.Error("known before it came")
	}
	for _, after := range []time.Duration{0, signatureAge, 2 * signatureAge} {
		if s.first([32]byte{1}, now.Add(after)) {
			t.Errorf("forgotten after %s", after)
		}
	}
	for i := range 3 * replaysAtOnce {
		s.first([32]byte{2, byte(i), byte(i >> 8), byte(i >> 16)}, now)
	}
	if n := len(s.newer) + len(s.older); n > 2*replaysAtOnce {
		t.Errorf("%d are remembered", n)
	}
}

// loginServer knows the user of the token "tok-<user>", and rejects other tokens.
func loginServer(t *testing.T) (server *httptest.Server, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		user, ok := strings.CutPrefix(r.URL.Query().Get("bk_token"), "tok-")
		fmt.Fprintf(w, `{"result":%t,"code":0,"data":{"bk_username":%q}}`, ok, user)
	}))
	t.Cleanup(server.Close)
	return server, asked
}

func TestWhatIsRememberedOfTokensEndsAndHasBounds(t *testing.T) {
	t.Parallel()
	server, asked := loginServer(t)
	l := newLogin(server.URL, nil)
	now := time.Now()
	l.now = func() time.Time { return now }
	ask := func(token string) int64 {
		before := asked.Load()
		_, _ = l.user(t.Context(), token)
		return asked.Load() - before
	}
	for _, step := range []struct {
		token string
		after time.Duration
		calls int64
	}{
		{"tok-ann", 0, 1},
		{"tok-ann", 59 * time.Second, 0},
		{"tok-ann", 2 * time.Second, 1},
		{"bad", 0, 1},
		{"bad", 4 * time.Second, 0},
		{"bad", 2 * time.Second, 1},
	} {
		now = now.Add(step.after)
		if n := ask(step.token); n != step.calls {
			t.Errorf("%+v: %d calls", step, n)
		}
	}
	l.mu.Lock()
	for i := range loginEntries {
		l.rejected[tokenKey{byte(i), byte(i >> 8)}] = &loggedIn{}
		l.users[tokenKey{byte(i), byte(i >> 8)}] = &loggedIn{}
	}
	l.mu.Unlock()
	ask("tok-new")
	ask("bad-new")
	if len(l.users) > loginEntries || len(l.rejected) > loginEntries {
		t.Errorf("%d and %d tokens are remembered", len(l.users), len(l.rejected))
	}
}

// In TestTokensThatNobodyWaitsForAreNotPiledUp callers disconnect while the login server is
// slow.
func TestTokensThatNobodyWaitsForAreNotPiledUp(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-held
		fmt.Fprint(w, `{"result":true,"data":{"bk_username":"ann"}}`)
	}))
	t.Cleanup(server.Close)
	l := newLogin(server.URL, nil)
	gone, leave := context.WithCancel(t.Context())
	leave()
	var busy int
	for i := range 2 * (loginCalls + loginWaiters) {
		if _, err := l.user(gone, "tok-"+strconv.Itoa(i)); errors.Is(err, errLoginBusy) {
			busy++
		}
	}
	l.mu.Lock()
	waiting := len(l.pending)
	l.mu.Unlock()
	if busy != loginCalls+loginWaiters || waiting != loginCalls+loginWaiters {
		t.Errorf("%d were turned away, %d wait", busy, waiting)
	}
	close(held)
	testenv.Eventually(t, 30*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.pending) == 0
	}, "no caller waits for the login server")
	if user, err := l.user(t.Context(), "tok-late"); user != "ann" || err != nil {
		t.Errorf("afterwards: %q, %v", user, err)
	}
}
