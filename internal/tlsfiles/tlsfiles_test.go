package tlsfiles_test

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

const patience = 30 * time.Second

func TestWhatIsWrongWithFilesIsToldWithItsFieldAndWithoutTheKey(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "tests")
	one, other := ca.Issue(t, "one"), ca.Issue(t, "other")
	expired, forServers := ca.Issue(t, "expired", tlstest.Expired), ca.Issue(t, "server", tlstest.ForServers)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	encrypted := filepath.Join(t.TempDir(), "encrypted.pem")
	if err := os.WriteFile(encrypted, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files tlsfiles.Files
		field string
		says  string
	}{
		"no such CA":         {tlsfiles.Files{CA: "/no/such/ca.pem"}, "CA", "/no/such/ca.pem: no such file"},
		"no CA in it":        {tlsfiles.Files{CA: empty}, "CA", "has no certificate in it"},
		"a key as the CA":    {tlsfiles.Files{CA: one.Key}, "CA", "has no certificate in it"},
		"no key":             {tlsfiles.Files{Cert: one.Cert}, "Key", "is missing for the certificate"},
		"no certificate":     {tlsfiles.Files{Key: one.Key}, "Cert", "is missing for the key"},
		"another's key":      {tlsfiles.Files{Cert: one.Cert, Key: other.Key}, "Key", "is not the key of the certificate"},
		"no key in it":       {tlsfiles.Files{Cert: one.Cert, Key: one.Cert}, "Key", "has no private key in it"},
		"an encrypted key":   {tlsfiles.Files{Cert: one.Cert, Key: encrypted}, "Key", "is encrypted"},
		"expired":            {tlsfiles.Files{Cert: expired.Cert, Key: expired.Key}, "Cert", "expired at 20"},
		"for servers alone":  {tlsfiles.Files{Cert: forServers.Cert, Key: forServers.Key}, "Cert", "is not for clients"},
		"a folder as the CA": {tlsfiles.Files{CA: t.TempDir()}, "CA", "is not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.files.ValidateClient()
			fields, rest := invalid.Fields(err)
			if len(fields) != 1 || len(rest) != 0 || fields[0].Name != c.field || !strings.Contains(fields[0].Problem.Error(), c.says) {
				t.Errorf("said %v; want %s: … %s …", err, c.field, c.says)
			}
			if (name == "expired") != errors.Is(err, tlsfiles.ErrNotInForce) {
				t.Errorf("%v: is it about the time?", err)
			}
		})
	}
	if err := (tlsfiles.Files{CA: ca.File}).ValidateServer(); err == nil {
		t.Error("a server with a CA for its clients and no certificate is taken")
	}
	good := tlsfiles.Files{CA: ca.File, Cert: one.Cert, Key: one.Key}
	if err := errors.Join(good.ValidateClient(), good.ValidateServer(), tlsfiles.Files{}.ValidateServer()); err != nil {
		t.Error(err)
	}
}

// served is an HTTP server whose listener has the files.
func served(t *testing.T, files tlsfiles.Files) (url string) {
	t.Helper()
	cfg, err := files.Server(testenv.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto) // the test reports a missing response
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	server.Listener = tls.NewListener(server.Listener, cfg)
	server.Start()
	t.Cleanup(server.Close)
	return "https://" + server.Listener.Addr().(*net.TCPAddr).String()
}

// asks returns a client with the files that uses a new connection for each request.
func asks(t *testing.T, files tlsfiles.Files) func(url string) error {
	t.Helper()
	client, err := files.Client(testenv.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	h := http.Client{Transport: client.Transport(&http.Transport{DisableKeepAlives: true})}
	return func(url string) error {
		resp, err := h.Get(url)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
}

func TestARenewedCertificateIsShownAndANewCABelievedWithoutARestart(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "first")
	server, person := ca.Issue(t, "server"), ca.Issue(t, "person")
	believed := filepath.Join(t.TempDir(), "believed.pem")
	tlstest.Replace(t, believed, ca.File)
	url := served(t, tlsfiles.Files{CA: believed, Cert: server.Cert, Key: server.Key})
	ask := asks(t, tlsfiles.Files{CA: believed, Cert: person.Cert, Key: person.Key})
	if err := ask(url); err != nil {
		t.Fatal(err)
	}

	next := tlstest.NewCA(t, "second")
	nextServer, nextPerson := next.Issue(t, "server"), next.Issue(t, "person")
	tlstest.Replace(t, believed, next.File)
	testenv.Eventually(t, patience, func() bool { return ask(url) != nil }, "the first CA is not believed any more")
	tlstest.Replace(t, server.Key, nextServer.Key) // a moment in which it is not the certificate's
	if err := ask(url); err == nil {
		t.Error("the old certificate is believed")
	}
	tlstest.Replace(t, server.Cert, nextServer.Cert)
	tlstest.Replace(t, person.Cert, nextPerson.Cert)
	tlstest.Replace(t, person.Key, nextPerson.Key)
	testenv.Eventually(t, patience, func() bool { return ask(url) == nil }, "the renewed certificates are shown and believed")
}

func TestWhoIsNotBelievedIsNotTalkedTo(t *testing.T) {
	t.Parallel()
	ca, foreign := tlstest.NewCA(t, "ours"), tlstest.NewCA(t, "foreign")
	server, person := ca.Issue(t, "server"), ca.Issue(t, "person")
	stranger, late := foreign.Issue(t, "person"), ca.Issue(t, "late", tlstest.Expired)
	mutual := served(t, tlsfiles.Files{CA: ca.File, Cert: server.Cert, Key: server.Key})
	open := served(t, tlsfiles.Files{Cert: server.Cert, Key: server.Key})
	for name, c := range map[string]struct {
		files tlsfiles.Files
		url   string
		good  bool
	}{
		"ours":                         {tlsfiles.Files{CA: ca.File, Cert: person.Cert, Key: person.Key}, mutual, true},
		"without a certificate":        {tlsfiles.Files{CA: ca.File}, mutual, false},
		"with a foreign one":           {tlsfiles.Files{CA: ca.File, Cert: stranger.Cert, Key: stranger.Key}, mutual, false},
		"with one that has expired":    {tlsfiles.Files{CA: ca.File, Cert: late.Cert, Key: late.Key}, mutual, false},
		"none is asked for":            {tlsfiles.Files{CA: ca.File}, open, true},
		"the server's CA is not known": {tlsfiles.Files{CA: foreign.File}, open, false},
		"the system's do not know it":  {tlsfiles.Files{}, open, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := asks(t, c.files)(c.url); (err == nil) != c.good {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestNothingBelowTLS12IsSpoken(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "tests")
	server := ca.Issue(t, "server")
	url := served(t, tlsfiles.Files{Cert: server.Cert, Key: server.Key})
	for version, good := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS10, MaxVersion: version})
		if (err == nil) != good {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			_ = conn.Close() // it was only to be made
		}
	}
}
