//go:build linux

package transport

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// externalServers is the login server, the collector of traces and the callback receiver. It
// counts requests and accepts only clients with a certificate.
type externalServers struct {
	url                       string
	logins, traces, callbacks atomic.Int64
}

func startExternalServers(t *testing.T, ca *tlstest.CA) *externalServers {
	t.Helper()
	own := ca.Issue(t, "others")
	pair, err := tls.LoadX509KeyPair(own.Cert, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	o := &externalServers{}
	server := httptest.NewUnstartedServer(o)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS12,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	o.url = server.URL
	return o
}

func (o *externalServers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/accounts/is_login/":
		o.logins.Add(1)
		fmt.Fprint(w, `{"result": true, "data": {"bk_username": "ada"}}`)
	case "/v1/traces":
		o.traces.Add(1)
		w.Header().Set("Content-Type", "application/x-protobuf")
	case "/done":
		o.callbacks.Add(1)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// calls starts a system with these arguments, lets it send all kinds of requests to
// externalServers, and returns the response to a user with a token, and the system.
func (o *externalServers) calls(t *testing.T, args ...string) (answer string, up *testenv.Child) {
	t.Helper()
	secret, apps, dispatcher := filepath.Join(t.TempDir(), "secret"), filepath.Join(t.TempDir(), "apps.yaml"), testenv.FreeAddress(t)
	if err := os.WriteFile(secret, []byte("correct-horse-battery-staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "app", "add", "shop", "--secret-file", secret, "--apps", apps); got.code != 0 {
		t.Fatalf("add an application: %+v", got)
	}
	up = testenv.StartChild(t, nil, program(t), join([]string{
		"up", "--http", dispatcher, "--apps", apps, "--data", filepath.Join(t.TempDir(), "data"), "--login-url", o.url, "--otlp", o.url,
	}, args)...)
	up.WaitHTTP(t, patience, "http://"+dispatcher+"/readyz")
	ask := func(path, header, value, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+dispatcher+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text strings.Builder
		if err := resp.Write(&text); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	accepted := ask("/v1/tasks", "Authorization", "Bearer shop.correct-horse-battery-staple", `{"action":"status","hosts":["0:127.0.0.1"],"callback":"`+o.url+`/done",
		"process":{"namespace":"n","name":"p","proc_name":"p","setup_path":"/nonexistent"}}`)
	if !strings.Contains(accepted, "201 Created") {
		t.Fatalf("response to the task: %s", accepted)
	}
	return ask("/api/c/compapi/v2/gse/get_proc_status/", "X-Bkapi-Authorization",
		`{"bk_app_code":"shop","bk_app_secret":"correct-horse-battery-staple","bk_token":"whose"}`, "{}"), up
}

// TestOutgoingTLSUsesTheFilesOfFlags checks requests to the
// login server, the collector and callback receivers, which all require a client
// certificate.
func TestOutgoingTLSUsesTheFilesOfFlags(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "others")
	o, own := startExternalServers(t, ca), ca.Issue(t, "procfleet")
	answer, _ := o.calls(t, join(files("login-url", ca, own), files("otlp", ca, own), files("callback", ca, own), []string{"--callback-allow", "127.0.0.1"})...)
	if o.logins.Load() == 0 || strings.Contains(answer, "bk_token") {
		t.Errorf("the login server received %d requests; the response is %s", o.logins.Load(), answer)
	}
	testenv.Eventually(t, patience, func() bool { return o.callbacks.Load() > 0 }, "callback arrives")
	testenv.Eventually(t, patience, func() bool { return o.traces.Load() > 0 }, "traces arrive")
}

// TestOutgoingTLSRejectsUnknownServers checks that a system without these flags
// rejects the certificates of the servers and sends no request.
func TestOutgoingTLSRejectsUnknownServers(t *testing.T) {
	t.Parallel()
	o := startExternalServers(t, tlstest.NewCA(t, "others"))
	answer, up := o.calls(t, "--callback-allow", "10.0.0.0/8,127.0.0.1")
	if !strings.Contains(answer, "bk_token") {
		t.Errorf("response to an unverified token: %s", answer)
	}
	up.WaitOutput(t, patience, "callback to 127.0.0.1")
	if o.logins.Load()+o.traces.Load()+o.callbacks.Load() > 0 {
		t.Error("a server with an untrusted certificate received a request")
	}
}

// TestCallbackToALocalServerIsRefused submits with an
// application that has only the right to status, and with the worker's own machine
// as receiver.
func TestCallbackToALocalServerIsRefused(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "others")
	o := startExternalServers(t, ca)
	_, up := o.calls(t, files("callback", ca, ca.Issue(t, "procfleet"))...)
	up.WaitOutput(t, patience, "--callback-allow 127.0.0.1")
	if o.callbacks.Load() > 0 {
		t.Error("a server on loopback received a callback")
	}
}

// TestCollectorTLSUsesTheStandardVariables uses the
// variables of OpenTelemetry without flags.
func TestCollectorTLSUsesTheStandardVariables(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "others")
	o, own, dispatcher := startExternalServers(t, ca), ca.Issue(t, "procfleet"), testenv.FreeAddress(t)
	up := testenv.StartChild(t, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + o.url, "OTEL_EXPORTER_OTLP_CERTIFICATE=" + ca.File,
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + own.Cert, "OTEL_EXPORTER_OTLP_CLIENT_KEY=" + own.Key,
	}, program(t), "up", "--agent=false", "--http", dispatcher, "--data", filepath.Join(t.TempDir(), "data"))
	up.WaitHTTP(t, patience, "http://"+dispatcher+"/readyz")
	submitted(t, dispatcher, 1)
	testenv.Eventually(t, patience, func() bool { return o.traces.Load() > 0 }, "traces arrive")
}
