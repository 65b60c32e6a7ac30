package client_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/client"
)

func TestRedirectionsAreFollowedWhereNothingIsLost(t *testing.T) {
	t.Parallel()
	for status, followed := range map[int]bool{
		http.StatusMovedPermanently: false, http.StatusFound: false, http.StatusSeeOther: false,
		http.StatusTemporaryRedirect: true, http.StatusPermanentRedirect: true,
	} {
		inBubble(t, func(t *network) {
			var b bookkeeper
			t.serve("a", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://b"+r.URL.Path, status) })
			t.serve("b", func(w http.ResponseWriter, r *http.Request) { b.accept(r); answer(w, http.StatusCreated, created) })
			_, err := t.client(client.Config{}).Submit(t.Context(), statusOperation())
			if (err == nil) != followed || len(b.tasks) != len(b.keys) || (len(b.keys) == 1) != followed {
				t.Errorf("%d: %v, keys %v", status, err, b.keys)
			}
			if !followed && (!strings.Contains(err.Error(), "http://b/v1/tasks") || errors.Is(err, client.ErrUnknown)) {
				t.Errorf("%d: %v", status, err)
			}
		})
	}
}

// If the client followed redirects with the token, a compromised server or proxy could
// redirect the token to any host.
func TestTheTokenGoesNoFurtherThanToTheServersThatWereNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		leads    string
		followed bool
	}{
		"another path":               {leads: "http://a/v1", followed: true},
		"another host":               {leads: "http://thief"},
		"another port":               {leads: "http://a:81"},
		"a host below its name":      {leads: "http://thief.a"},
		"a user of the same name":    {leads: "http://a@thief"},
		"a host that begins like it": {leads: "http://a.thief"},
	} {
		inBubble(t, func(t *network) {
			var tokens []string
			end := func(w http.ResponseWriter, r *http.Request) {
				tokens = append(tokens, r.Header.Get("Authorization"))
				answer(w, http.StatusCreated, created)
			}
			t.serve("a", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/v1/tasks" || r.Host == "a:81" {
					end(w, r)
					return
				}
				http.Redirect(w, r, test.leads+r.URL.Path, http.StatusTemporaryRedirect)
			})
			for _, host := range []string{"thief", "thief.a", "a.thief"} {
				t.serve(host, end)
			}
			_, err := t.client(client.Config{Token: "shop.secret"}).Submit(t.Context(), statusOperation())
			switch {
			case test.followed && (err != nil || len(tokens) != 1 || tokens[0] != "Bearer shop.secret"):
				t.Errorf("%s: %v, tokens %q", name, err, tokens)
			case !test.followed && (err == nil || len(tokens) != 0 || !strings.Contains(err.Error(), "must not get the token") || errors.Is(err, client.ErrUnknown)):
				t.Errorf("%s: %v, tokens %q", name, err, tokens)
			}
		})
	}
}
