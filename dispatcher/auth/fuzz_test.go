package auth

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// answering is a server that returns the same body to every request.
type answering []byte

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// FuzzLogin decodes arbitrary responses of a login server.
func FuzzLogin(f *testing.F) {
	f.Add([]byte(`{"result":true,"data":{"bk_username":"ann"}}`))
	f.Add([]byte(`{"result":false,"data":[]}`))
	f.Add([]byte(`{"result":false,"data":{"bk_username":"ann"}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		l := newLogin("http://login.invalid", nil)
		l.client = &http.Client{Transport: answering(answer)}
		if user, err := l.fetch("token"); (err == nil) == (user == "") {
			t.Errorf("%q makes user %q, %v", answer, user, err)
		} else if err == nil && !bytes.Contains(answer, []byte("true")) {
			t.Errorf("%q makes user %q", answer, user)
		}
	})
}

// FuzzAuthenticate sends any credentials to every family of paths: a caller without
// a secret or key is never authenticated.
func FuzzAuthenticate(f *testing.F) {
	f.Add(`{"bk_app_code":"shop","bk_app_secret":"x"}`, "", "", "")
	f.Add("", "Bearer shop.wrong", "", "")
	f.Add("", "", "bk_app_code=shop&bk_nonce=1&bk_timestamp=1&bk_signature=x", `{"bk_app_code":"shop"}`)
	cfg := Config{AppsFile: filepath.Join(f.TempDir(), "apps.yaml"), Meter: noop.Meter{}}
	if err := apps.Update(cfg.AppsFile, func(file *apps.File) error {
		file.Put(apps.Application{Code: "shop", Secret: apps.Hash("s3cret"), SigningKey: "k3y", Businesses: apps.NoLimit(), Actions: apps.NoLimit(), SkipUserAuth: true})
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	a, err := New(&cfg)
	if err == nil {
		_, err = a.apps.Verify(f.Context(), "shop", "s3cret") // from now on another is wrong at once
	}
	if err != nil {
		f.Fatal(err)
	}
	families := []dialect.Family{}
	for _, d := range dialect.All() {
		families = append(families, d.Reached()...)
	}
	f.Fuzz(func(t *testing.T, bkapi, authorization, query, body string) {
		if strings.Contains(bkapi+authorization+query+body, "s3cret") {
			return
		}
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.URL.RawQuery = query
		in := &dialect.Request{Method: http.MethodPost, Path: "/", Query: r.URL.Query(), BkapiAuthorization: bkapi, Authorization: authorization, BkAppCode: "shop", Body: []byte(body)}
		for i := range families {
			if who, err := a.Authenticate(t.Context(), &families[i], in, netip.Addr{}); err == nil {
				t.Errorf("%q, %q, %q, %q got in as %q", bkapi, authorization, query, body, who.Application)
			}
		}
	})
}
