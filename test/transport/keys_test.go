//go:build linux

package transport

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// aKey matches keys in the files of a fleet: a seed of NATS, or 32 bytes in base64.
var aKey = regexp.MustCompile(`S[UAO][A-Z2-7]{56}|[A-Za-z0-9+/]{43}=`)

// keysIn returns the keys in all files below a folder, by file name.
func keysIn(t *testing.T, folder string) map[string]string {
	t.Helper()
	keys := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		for i, key := range aKey.FindAllString(string(text), -1) {
			keys[fmt.Sprintf("key %d of %s", i, path)] = key
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestKeysAreNotDisclosed starts every role with keys of all kinds, and then with
// damaged, foreign and exchanged files, at log level debug. No output may contain a
// key.
func TestKeysAreNotDisclosed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	fleet := func(name string) (data, identity string) {
		data, identity = filepath.Join(folder, name), filepath.Join(folder, name+".yaml")
		if got := run(t, "enroll", "--create", "--data", data, "--host", "3:10.0.0.1", "--out", identity); got.code != 0 {
			t.Fatalf("enroll: %+v", got)
		}
		return data, identity
	}
	data, identity := fleet("ours")
	foreign, foreignIdentity := fleet("foreign")
	ca := tlstest.NewCA(t, "fleet")
	server := ca.Issue(t, "server")
	another := tlstest.NewCA(t, "another").Issue(t, "another")
	secrets := keysIn(t, folder)
	if len(secrets) < 20 {
		t.Fatalf("only %d keys in %s: their format has changed", len(secrets), folder)
	}
	addFile(t, secrets, "the key of TLS", server.Key, 1)
	addFile(t, secrets, "another key of TLS", another.Key, 1)

	broker := testenv.FreeAddress(t)
	conf := filepath.Join(data, "nats-auth", "nats.conf")
	text := fmt.Sprintf("listen: %q\ninclude broker.conf\nresolver { type: full, dir: %q }\njetstream { store_dir: %q }\n", broker, t.TempDir(), t.TempDir())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2"), "-c", conf).WaitOutput(t, patience, "Server is ready")
	traces := &receivedSpans{}
	collector := httptest.NewServer(traces)
	t.Cleanup(collector.Close)
	redis, dispatcher := redistest.Start(t).URL(), testenv.FreeAddress(t)
	agentData := filepath.Join(t.TempDir(), "agent")
	creds := func(data string) string { return filepath.Join(data, "nats-auth", "server.creds") }
	role := func(name, status, data string, more ...string) []string {
		args := []string{name, "--nats", "nats://" + broker, "--log-level", "debug", "--status-http", status}
		if name != "agent" {
			args = append(args, "--redis", redis, "--nats-creds", creds(data), "--fleet-key", filepath.Join(data, "fleet.key"), "--otlp", collector.URL)
		}
		return append(args, more...)
	}
	told := map[string]string{}
	var working []*testenv.Child
	for _, r := range [][]string{
		role("dispatcher", testenv.FreeAddress(t), data, "--http", dispatcher, "--http-cert", server.Cert, "--http-key", server.Key),
		role("worker", testenv.FreeAddress(t), data),
		role("agent", testenv.FreeAddress(t), "", "--identity", identity, "--data", agentData),
	} {
		status := r[6]
		child := testenv.StartChild(t, nil, program(t), r...)
		child.WaitHTTP(t, patience, "http://"+status+"/readyz")
		working = append(working, child)
		resp, err := http.Get("http://" + status + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		var metrics strings.Builder
		err = errors.Join(resp.Write(&metrics), resp.Body.Close())
		if err != nil {
			t.Fatal(err)
		}
		told["metrics of "+r[0]] = metrics.String()
	}
	op := run(t, "op", "status", "--host", "3:10.0.0.1", "--server", "https://"+dispatcher, "--server-ca", ca.File, "--wait", "--json",
		"-f", filepath.Join(testenv.ModuleRoot(), "docs", "examples", "sleeper.yaml"))
	if op.code != exitDown {
		t.Errorf("op: %+v", op)
	}
	told["op"] = op.out + op.err

	// The error message of a nearly valid file names the invalid part and omits the
	// valid ones.
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.CopyFS(damaged, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{identity, creds(data), filepath.Join(data, "fleet.key"), filepath.Join(data, "nats-auth", "authority.yaml")} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(damaged, strings.TrimPrefix(file, data))
		if file == identity {
			target = filepath.Join(damaged, "identity.yaml")
		}
		// Remove a letter from each key.
		if err := os.WriteFile(target, aKey.ReplaceAllFunc(text, func(key []byte) []byte { return key[:len(key)-2] }), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, args := range map[string][]string{
		"a damaged identity":   role("agent", testenv.FreeAddress(t), "", "--identity", filepath.Join(damaged, "identity.yaml"), "--data", t.TempDir()),
		"a key for another":    role("agent", testenv.FreeAddress(t), "", "--identity", filepath.Join(data, "fleet.key"), "--data", t.TempDir()),
		"a damaged fleet key":  role("worker", testenv.FreeAddress(t), damaged),
		"swapped files":        role("worker", testenv.FreeAddress(t), data, "--fleet-key", creds(data)),
		"a swapped TLS key":    role("dispatcher", testenv.FreeAddress(t), data, "--http", testenv.FreeAddress(t), "--http-cert", server.Cert, "--http-key", another.Key),
		"a key as certificate": role("dispatcher", testenv.FreeAddress(t), data, "--http", testenv.FreeAddress(t), "--http-cert", server.Key, "--http-key", server.Key),
		"a damaged authority":  {"nats-auth", "user", "server", "--nats-auth", filepath.Join(damaged, "nats-auth")},
		"a swapped authority":  {"nats-auth", "revoke", "--creds", filepath.Join(data, "nats-auth", "authority.yaml"), "--nats-auth", filepath.Join(data, "nats-auth")},
		"a damaged enrolment":  {"enroll", "--host", "3:10.0.0.2", "--data", damaged},
	} {
		got := run(t, args...)
		if got.code == 0 {
			t.Errorf("%s: no error", what)
		}
		told[what] = got.out + got.err
	}
	// These credentials belong to another broker.
	for what, args := range map[string][]string{
		"a foreign server": role("worker", testenv.FreeAddress(t), foreign),
		"a foreign agent":  role("agent", testenv.FreeAddress(t), "", "--identity", foreignIdentity, "--data", t.TempDir()),
	} {
		child := testenv.StartChild(t, nil, program(t), args...)
		child.WaitOutput(t, patience, "Authorization Violation")
		child.Signal(15)
		child.Wait(t, patience)
		told[what] = child.WholeOutput(t, patience)
	}
	for i, child := range working {
		child.Signal(15)
		child.Wait(t, patience)
		told[fmt.Sprintf("log %d", i)] = child.WholeOutput(t, patience)
	}
	told["traces"] = traces.String()
	for where, text := range told {
		for what, secret := range secrets {
			if strings.Contains(text, secret[:len(secret)-2]) {
				t.Errorf("%s contained in %s", what, where)
			}
		}
	}
	for what, key := range keysIn(t, agentData) {
		t.Errorf("the agent's folder contains %s: %.8s…", what, key)
	}
}

// TestPipeInPlaceOfAFileIsRejected gives each role a pipe in place of a file with
// secrets, certificates or settings. A pipe without a writer blocks its reader
// forever. The role must report the pipe, and also other things that are not
// regular files or that any account can write.
func TestPipeInPlaceOfAFileIsRejected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := filepath.Join(dir, "authority")
	pipe, device, open := filepath.Join(dir, "pipe"), filepath.Join(dir, "device"), filepath.Join(dir, "open")
	err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", device), os.Mkdir(authority, 0o700),
		syscall.Mkfifo(filepath.Join(authority, "authority.yaml"), 0o600), os.WriteFile(open, nil, 0o600), os.Chmod(open, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	worker := []string{"worker", "--nats", "nats://127.0.0.1:1", "--redis", "redis://127.0.0.1:1"}
	for what, c := range map[string]struct {
		args []string
		want string
	}{
		"a pipe as the fleet key":       {join(worker, []string{"--fleet-key", pipe}), pipe + " is not a regular file"},
		"a device as the fleet key":     {join(worker, []string{"--fleet-key", device}), device + " is not a regular file"},
		"a folder as the fleet key":     {join(worker, []string{"--fleet-key", dir}), dir + " is not a regular file"},
		"everybody's file as fleet key": {join(worker, []string{"--fleet-key", open}), open + " has mode 0644"},
		"a pipe as Redis's password":    {join(worker, []string{"--redis-password-file", pipe}), pipe + " is not a regular file"},
		"a pipe as an identity":         {[]string{"agent", "--identity", pipe, "--data", filepath.Join(dir, "agent")}, pipe + " is not a regular file"},
		"a pipe as the applications":    {[]string{"app", "list", "--apps", pipe}, pipe + " is not a regular file"},
		"a pipe as a CA":                {join(worker, []string{"--nats-ca", pipe}), "--nats-ca: " + pipe + " is not a regular file"},
		"a pipe as a certificate":       {join(worker, []string{"--nats-cert", pipe, "--nats-key", open}), "--nats-cert: " + pipe + " is not a regular file"},
		"a pipe as a key of TLS":        {join(worker, []string{"--nats-cert", open, "--nats-key", pipe}), "--nats-key: " + pipe + " is not a regular file"},
		"a pipe as the configuration":   {join(worker, []string{"--config", pipe}), "--config: " + pipe + " is not a regular file"},
		"a pipe as the authority":       {[]string{"nats-auth", "user", "server", "--nats-auth", authority}, "authority.yaml is not a regular file"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if got := run(t, c.args...); got.code <= 0 || !strings.Contains(got.err+got.out, c.want) {
				t.Errorf("exit %d, want a failure with %q: %s%s", got.code, c.want, got.out, got.err)
			}
		})
	}
}
