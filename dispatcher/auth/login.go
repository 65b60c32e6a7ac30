package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet/internal/tlsfiles"
)

const (
	loginTimeout = 3 * time.Second
	// Cache durations of a valid token's user, and of an invalid token.
	userCached, rejectionCached = 60 * time.Second, 5 * time.Second
	// loginEntries bounds the cached users, and the cached invalid tokens.
	loginEntries = 10_000
	// loginCalls bounds the concurrent requests to the login server.
	loginCalls = 16
	// loginWaiters bounds the tokens that wait for a free request.
	loginWaiters = 256
	maxLogin     = 64 << 10 // bytes read of a response
	maxToken     = 4 << 10
)

// errBadToken means that the login server rejected a token.
var errBadToken = errors.New("the login server rejected the bk_token")

// errLoginBusy means that a token was not checked due to load.
var errLoginBusy = errors.New("too many bk_tokens are waiting for verification")

// login queries BlueKing's login server for the user of a bk_token and caches the
// response. It is safe for concurrent use.
type login struct {
	url     string
	client  *http.Client
	calls   chan struct{}
	now     func() time.Time
	queried func(outcome string) // called after each request with its outcome: ok, refused or failed

	mu              sync.Mutex
	users, rejected map[tokenKey]*loggedIn // cached responses for valid and for invalid tokens
	pending         map[tokenKey]*loggedIn
}

// tokenKey is a token's digest; the cache must not contain credentials.
type tokenKey [sha256.Size]byte

// loggedIn is the response for one token. Its fields are set before done is closed.
type loggedIn struct {
	done chan struct{}
	user string
	err  error
	till time.Time
}

func newLogin(server string, files *tlsfiles.Client) *login {
	var transport http.RoundTripper // nil means http.DefaultTransport
	if files != nil {
		transport = files.Transport(http.DefaultTransport.(*http.Transport).Clone())
	}
	return &login{
		url: strings.TrimRight(server, "/"), calls: make(chan struct{}, loginCalls), now: time.Now, queried: func(string) {},
		client: &http.Client{
			Transport: transport, Timeout: loginTimeout,
			// Follow no redirect: an invalid token may redirect to the login page.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		users: map[tokenKey]*loggedIn{}, rejected: map[tokenKey]*loggedIn{}, pending: map[tokenKey]*loggedIn{},
	}
}

// user returns the user of a token, from the cache or the login server.
func (l *login) user(ctx context.Context, token string) (string, error) {
	if len(token) > maxToken {
		return "", fmt.Errorf("the bk_token is longer than %d bytes", maxToken)
	}
	known := l.lookup(sha256.Sum256([]byte(token)), token)
	if known == nil {
		return "", errLoginBusy
	}
	select {
	case <-known.done:
		return known.user, known.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// lookup returns the cached or pending response for a token, or starts a request that all
// callers with this token share. It returns nil if too many tokens are waiting.
func (l *login) lookup(key tokenKey, token string) *loggedIn {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, cache := range []map[tokenKey]*loggedIn{l.users, l.rejected} {
		if known := cache[key]; known != nil {
			if now.Before(known.till) {
				return known
			}
			delete(cache, key)
		}
	}
	if response := l.pending[key]; response != nil {
		return response
	}
	if len(l.pending) >= loginCalls+loginWaiters {
		return nil
	}
	response := &loggedIn{done: make(chan struct{})}
	l.pending[key] = response
	go l.query(key, token, response) // not with a caller's context: other callers may wait for the same response
	return response
}

func (l *login) query(key tokenKey, token string, response *loggedIn) {
	l.calls <- struct{}{}
	response.user, response.err = l.fetch(token)
	<-l.calls
	cache, till, outcome := l.users, userCached, "ok"
	if response.err != nil {
		cache, till, outcome = l.rejected, rejectionCached, "failed"
	}
	if errors.Is(response.err, errBadToken) {
		outcome = "refused"
	}
	l.queried(outcome)
	l.mu.Lock()
	response.till = l.now().Add(till)
	delete(l.pending, key)
	for other := range cache {
		if len(cache) < loginEntries {
			break
		}
		delete(cache, other) // evicts a random entry
	}
	cache[key] = response
	l.mu.Unlock()
	close(response.done)
}

// fetch sends the request. Its errors do not contain the token.
func (l *login) fetch(token string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), loginTimeout)
	defer cancel()
	at := l.url + "/accounts/is_login/?bk_token=" + url.QueryEscape(token)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return "", errors.New("the address of the login server is invalid")
	}
	response, err := l.client.Do(request)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // drop the URL, which contains the token
		}
		return "", fmt.Errorf("the login server is unavailable: %w", err)
	}
	defer response.Body.Close()
	var body struct {
		Result bool `json:"result"`
		Data   struct {
			BkUsername string `json:"bk_username"`
			Username   string `json:"username"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxLogin)).Decode(&body); err != nil && !body.Result {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return "", errBadToken // without a user, the response's data is not an object
		}
		return "", fmt.Errorf("the login server responded %s without a JSON object", response.Status)
	}
	user := cmp.Or(body.Data.BkUsername, body.Data.Username)
	if !body.Result || user == "" {
		return "", errBadToken
	}
	return user, nil
}
