package web

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/procfleet/procfleet/client"
)

// KeySize is the size in bytes of the key of sessions.
const KeySize = 32

// sessionCookie has the prefix __Host-: browsers send it only over TLS, or to this machine, and only to
// the host that set it.
const sessionCookie = "__Host-procfleet"

// sessionLife is the time from a sign-in until the viewer must sign in again.
const sessionLife = 12 * time.Hour

// session is the viewer of pages. A later kind of sign-in adds its credentials here and to
// [visit.enter]; nothing else knows how viewers sign in.
type session struct {
	Token string `json:"token"` // of an application, "<code>.<secret>"
	// Business limits the pages to the hosts of a business, as applications need that may not read all.
	Business string    `json:"business,omitempty"`
	Until    time.Time `json:"until"`
}

// application returns the code of the application.
func (s *session) application() string {
	code, _, _ := strings.Cut(s.Token, ".")
	return code
}

// sessions encrypts sessions for cookies, so that no server has to store them.
type sessions struct{ aead cipher.AEAD }

func newSessions(key []byte) (*sessions, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key of the console has %d bytes, %d are required", len(key), KeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &sessions{aead}, err
}

func (s *sessions) seal(of *session) (string, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, []byte(sessionCookie))), nil //nolint:gosec // the cipher makes the nonces
}

// of returns the session of a request; nil without a valid one.
func (s *sessions) of(r *http.Request) *session {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return nil
	}
	sealed, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return nil
	}
	text, err := s.aead.Open(nil, nil, sealed, []byte(sessionCookie))
	if err != nil {
		return nil
	}
	var found session
	if json.Unmarshal(text, &found) != nil || time.Now().After(found.Until) {
		return nil
	}
	return &found
}

func setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int(life.Seconds()),
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// maxForm is the maximum size in bytes of a form. The largest has a list of hosts.
const maxForm = 4 << 20

// signInView is the content of the sign-in page.
type signInView struct {
	Next    string
	Problem string // key of a text; "" without a problem
}

func showSignIn(_ context.Context, v *visit) (any, error) {
	view := signInView{Next: ownPath(v.query("next"))}
	switch {
	case v.query("wrong") != "":
		view.Problem = "signin.wrong"
	case v.query("kept") != "":
		view.Problem = "signin.cookie"
	}
	return view, nil
}

// signIn handles the form of the sign-in page. The API verifies the token.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	token := strings.TrimSpace(r.PostFormValue("token"))
	next := ownPath(r.PostFormValue("next"))
	to := func(query url.Values) {
		query.Set("next", next)
		http.Redirect(w, r, Prefix+"signin?"+query.Encode(), http.StatusSeeOther)
	}
	v := c.visit(w, r)
	v.enter(&session{Token: token, Business: strings.TrimSpace(r.PostFormValue("business")), Until: time.Now().Add(sessionLife)})
	_, err := v.api.HostPage(r.Context(), client.HostQuery{Query: client.Query{PageSize: 1}})
	if token == "" || v.session == nil || signedOut(err) {
		to(url.Values{"wrong": {"1"}})
		return
	}
	sealed, err := c.sessions.seal(v.session)
	if err != nil {
		v.fail(err)
		return
	}
	setCookie(w, sessionCookie, sealed, sessionLife)
	to(url.Values{"kept": {"1"}}) // the sign-in page leads on if the browser has stored the cookie
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	setCookie(w, sessionCookie, "", -time.Second)
	http.Redirect(w, r, Prefix+"signin", http.StatusSeeOther)
}

// ownPath returns a path of the console; other addresses are replaced by the first page, so that
// a sign-in leads to no other site.
func ownPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, Prefix) || strings.Contains(next, `\`) || strings.Contains(next, "..") {
		return Prefix
	}
	return cmp.Or(next, Prefix)
}
