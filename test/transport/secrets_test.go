//go:build linux

package transport

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// receivedSpans is the decompressed text of all requests to a collector of traces.
type receivedSpans struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (k *receivedSpans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		if unpacked, err := gzip.NewReader(r.Body); err == nil {
			body = unpacked
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _ = k.text.ReadFrom(body) // stores even an incomplete body
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (k *receivedSpans) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}

// TestSecretsAreNotDisclosed starts a system at log level debug with a
// distinctive secret in every place that has one, causes errors with each, and
// searches logs, traces, metrics and responses for the secrets.
func TestSecretsAreNotDisclosed(t *testing.T) {
	t.Parallel()
	const (
		redisSecret = "planted-redis-7f3a"
		natsSecret  = "planted-nats-91cc"
		appSecret   = "planted-app-secret-d04be2"
		badSecret   = "planted-wrong-secret-aa18"
		token       = "planted-bk-token-55e0"
		envSecret   = "planted-environment-c3f1"
		callSecret  = "planted-callback-6e2d" // in its user and in its query
	)
	traces := &receivedSpans{}
	collector := httptest.NewServer(traces)
	t.Cleanup(collector.Close)
	redis := redistest.Start(t, "--requirepass", "")
	redis.Do(t, "ACL SETUSER keeper on >"+redisSecret+" ~* &* +@all")
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte(appSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	apps := filepath.Join(t.TempDir(), "apps.yaml")
	if got := run(t, "app", "add", "shop", "--skip-user-auth", "--signing", "--secret-file", secretFile, "--apps", apps); got.code != 0 {
		t.Fatalf("add an application: %+v", got)
	}
	ca := tlstest.NewCA(t, "fleet")
	server := ca.Issue(t, "server")
	data, dispatcher, status := filepath.Join(t.TempDir(), "data"), testenv.FreeAddress(t), testenv.FreeAddress(t)
	broker := testenv.FreeAddress(t)
	_, port, _ := strings.Cut(broker, ":")
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2"), "-a", "127.0.0.1", "-p", port, "-js", "-sd", t.TempDir(),
		"--user", "fleet", "--pass", natsSecret).WaitOutput(t, patience, "Server is ready")
	up := testenv.StartChild(t, nil, program(t), "up", "--http", dispatcher, "--http-cert", server.Cert, "--http-key", server.Key, "--status-http", status,
		"--redis", "redis://keeper:"+redisSecret+"@"+redis.Addr, "--nats", "nats://fleet:"+natsSecret+"@"+broker, "--apps", apps,
		"--login-url", collector.URL, "--otlp", collector.URL, "--log-level", "debug", "--data", data)
	up.WaitHTTP(t, patience, "http://"+status+"/readyz")
	// Wrong passwords are secrets, too, because they are often nearly correct.
	wrong := testenv.StartChild(t, nil, program(t), "worker", "--log-level", "debug",
		"--redis", "redis://keeper:"+badSecret+"@"+redis.Addr, "--nats", "nats://fleet:"+badSecret+"@"+broker)
	wrong.WaitOutput(t, patience, "Authorization Violation")

	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}}}
	var heard strings.Builder
	ask := func(method, path, body string, headers ...string) string {
		req, err := http.NewRequest(method, "https://"+dispatcher+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		heard.Write(text)
		return string(text)
	}
	right, bad := "Bearer shop."+appSecret, "Bearer shop."+badSecret
	operation := `{"callback":"http://ops:` + callSecret + `@127.0.0.1:1/done?token=` + callSecret + `","action":"start","hosts":["0:127.0.0.1"],"process":{"namespace":"n","name":"p","proc_name":"p","setup_path":"/tmp","control":{"start":"false","no_profile":true,"env":{"DB_PASSWORD":"` +
		envSecret + `"}}}}`
	var task struct {
		ID string `json:"id"`
	}
	accepted := ask("POST", "/v1/tasks", operation, "Authorization", right, "Content-Type", "application/json")
	if err := json.Unmarshal([]byte(accepted), &task); err != nil || task.ID == "" {
		t.Fatalf("task not accepted: %s %v", accepted, err)
	}
	testenv.Eventually(t, patience, func() bool {
		return strings.Contains(ask("GET", "/v1/tasks/"+task.ID, "", "Authorization", right), `"finished"`)
	}, "the task ends")
	ask("GET", "/v1/tasks/"+task.ID+"/results", "", "Authorization", right)
	ask("POST", "/v1/tasks", operation, "Authorization", bad)
	ask("POST", "/v1/tasks", operation+"{", "Authorization", right)
	ask("GET", "/v1/nothing?bk_token="+token, "", "Authorization", bad)
	esb := "/api/c/compapi/v2/gse/get_proc_status/"
	ask("POST", esb+"?bk_app_code=shop&bk_app_secret="+badSecret, "{}")
	ask("POST", esb, `{"bk_app_code":"shop","bk_app_secret":"`+appSecret+`","bk_token":"`+token+`"}`)
	ask("POST", esb, `{"bk_app_code":"shop","bk_app_secret":"`+badSecret+`","bk_token":"`+token+`"`)
	ask("POST", esb, "{}", "X-Bkapi-Authorization", `{"bk_app_code":"shop","bk_app_secret":"`+badSecret+`"`)
	ask("GET", "/"+strings.Repeat("x/", 10), "", "Authorization", right)
	for _, path := range []string{"/metrics", "/readyz", "/openapi.json"} {
		ask("GET", path, "")
	}
	checked := run(t, "worker", "--check-config", "--redis", "redis://keeper:"+redisSecret+"@127.0.0.1:1", "--nats", "nats://fleet:"+natsSecret+"@127.0.0.1:1")
	refused := run(t, "worker", "--redis", "redis://keeper:"+redisSecret+"@127.0.0.1:x", "--nats", "foo://fleet:"+natsSecret+"@127.0.0.1:1")
	up.Signal(15) // the last traces are sent on shutdown
	up.Wait(t, patience)

	secrets := map[string]string{
		"Redis's password": redisSecret, "NATS's password": natsSecret, "an application's secret": appSecret, "a wrong secret": badSecret,
		"a user's token": token, "a process's environment": envSecret, "a callback's secret": callSecret,
	}
	addFile(t, secrets, "the key of TLS", server.Key, 1)
	if trace := traces.String(); !strings.Contains(trace, "procfleet") {
		t.Error("no traces arrived")
	}
	for where, text := range map[string]string{
		"the log": up.WholeOutput(t, patience), "the log of a worker with wrong passwords": wrong.Output(), "answers and metrics": heard.String(),
		"traces": traces.String(), "--check-config": checked.out + checked.err, "wrong settings": refused.out + refused.err,
	} {
		for what, secret := range secrets {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s contained in %s: … %.200q", what, where, text[max(0, at-80):])
			}
		}
	}
}

// addFile adds a line of a file to the secrets.
func addFile(t *testing.T, secrets map[string]string, what, name string, line int) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	secrets[what] = strings.Split(string(text), "\n")[line]
}
