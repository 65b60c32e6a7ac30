package auth

import (
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
	loginKept, loginRefusedKept = 60 * time.Second, 5 * time.Second
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
var errBadToken = errors.New("the login server does not take it")

// errLoginBusy means that a token was not checked due to load.
var errLoginBusy = errors.New("too many bk_tokens wait to be checked")

// login queries BlueKing's login server for the user of a bk_token and caches the
// response. It is safe for concurrent use.
type login struct {
	url    string
	client *http.Client
	calls  chan struct{}
	now    func() time.Time
	asked  func(outcome string) // called after each request with its outcome: ok, refused or failed

	mu              sync.Mutex
	users, rejected map[tokenKey]*loggedIn // cached responses for valid and for invalid tokens
	asking          map[tokenKey]*loggedIn
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
		url: strings.TrimRight(server, "/"), calls: make(chan struct{}, loginCalls), now: time.Now, asked: func(string) {},
		client: &http.Client{
			Transport: transport, Timeout: loginTimeout,
			// Follow no redirect: an invalid token may redirect to the login page.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		users: map[tokenKey]*loggedIn{}, rejected: map[tokenKey]*loggedIn{}, asking: map[tokenKey]*loggedIn{},
	}
}

// user returns the user of a token, from the cache or the login server.
func (l *login) user(ctx context.Context, token string) (string, error) {
	if len(token) > maxToken {
		return "", fmt.Errorf("it is longer than %d bytes", maxToken)
	}
	known := l.ask(sha256.Sum256([]byte(token)), token)
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

// ask returns the cached or pending response for a token, or starts a request that all
// callers with this token share. It returns nil if too many tokens are waiting.
func (l *login) ask(key tokenKey, token string) *loggedIn {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, kept := range []map[tokenKey]*loggedIn{l.users, l.rejected} {
		if known := kept[key]; known != nil {
			if now.Before(known.till) {
				return known
			}
			delete(kept, key)
		}
	}
	if asked := l.asking[key]; asked != nil {
		return asked
	}
	if len(l.asking) >= loginCalls+loginWaiters {
		return nil
	}
	asked := &loggedIn{done: make(chan struct{})}
	l.asking[key] = asked
	go l.query(key, token, asked) // not with a caller's context: other callers may wait for the same response
	return asked
}

func (l *login) query(key tokenKey, token string, asked *loggedIn) {
	l.calls <- struct{}{}
	asked.user, asked.err = l.fetch(token)
	<-l.calls
	kept, till, outcome := l.users, loginKept, "ok"
	if asked.err != nil {
		kept, till, outcome = l.rejected, loginRefusedKept, "failed"
	}
	if errors.Is(asked.err, errBadToken) {
		outcome = "refused"
	}
	l.asked(outcome)
	l.mu.Lock()
	asked.till = l.now().Add(till)
	delete(l.asking, key)
	for other := range kept {
		if len(kept) < loginEntries {
			break
		}
		delete(kept, other) // evicts a random entry
	}
	kept[key] = asked
	l.mu.Unlock()
	close(asked.done)
}

// fetch sends the request. Its errors do not contain the token.
func (l *login) fetch(token string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), loginTimeout)
	defer cancel()
	at := l.url + "/accounts/is_login/?bk_token=" + url.QueryEscape(token)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return "", errors.New("the login server's address cannot be used")
	}
	response, err := l.client.Do(request)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // drop the URL, which contains the token
		}
		return "", fmt.Errorf("the login server cannot be asked: %w", err)
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
		return "", fmt.Errorf("the login server answered %s, and no JSON object", response.Status)
	}
	user := body.Data.BkUsername
	if user == "" {
		user = body.Data.Username
	}
	if !body.Result || user == "" {
		return "", errBadToken
	}
	return user, nil
}
