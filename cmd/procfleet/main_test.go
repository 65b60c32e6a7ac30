package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.WithoutProfile()
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

func task(state procfleet.TaskState, items, failed, succeeded int) client.Task {
	return client.Task{State: state, Items: items, Counts: procfleet.Counts{
		procfleet.StateFailed: failed, procfleet.StateSucceeded: succeeded, procfleet.StatePending: items - failed - succeeded,
	}}
}

// call runs the command in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestEveryCommandShowsAnExample(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		code, stdout, _ := call(t, append(path, "--help")...)
		if code != 0 || !strings.Contains(stdout, "Examples:\n  procfleet") {
			t.Errorf("%v --help: exit %d, no example in\n%s", path, code, stdout)
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
}

func TestWrongUsageEndsWith2AndPointsToHelp(t *testing.T) {
	t.Parallel()
	const host = "--host=0:10.0.0.1"
	for name, args := range map[string][]string{
		"no command":             {},
		"unknown command":        {"fly"},
		"unknown flag":           {"up", "--fast"},
		"unexpected argument":    {"up", "now"},
		"no URL of NATS":         {"dispatcher", "--http", "127.0.0.1:0", "--nats", "foo://x"},
		"bad value of a flag":    {"task", "list", "--limit", "many"},
		"task without a verb":    {"task"},
		"op without an action":   {"op"},
		"unknown action":         {"op", "explode", host, "-f", "main.go"},
		"op without a spec":      {"op", "start", host},
		"a spec that is missing": {"op", "start", host, "-f", "nowhere.yaml"},
		"op without hosts":       {"op", "status", "-f", "testdata/spec.yaml"},
		"a bad host":             {"op", "status", "--host", "10.0.0.1", "-f", "testdata/spec.yaml"},
		"a misspelt spec":        {"op", "start", host, "-f", "testdata/misspelt.yaml"},
		"two specs":              {"op", "start", "--registered", "-f", "testdata/spec.yaml"},
		"a nameless process":     {"op", "start", "--registered", "--namespace", "shop"},
		"a name beside a spec":   {"op", "status", host, "-f", "testdata/spec.yaml", "--name", "web"},
		"no process selected":    {"op", "stop", "--biz", "2", "--module", "web"},
		"selected twice":         {"op", "stop", "--biz", "2", "--process", "a", "--process-id", "1"},
		"selected nowhere":       {"op", "stop", "--process", "a"},
		"selected and named":     {"op", "stop", "--biz", "2", "--process", "a", host},
		"selected with a spec":   {"op", "stop", "--biz", "2", "--process", "a", "-f", "testdata/spec.yaml"},
		"an account of nothing":  {"op", "status", host, "-f", "testdata/spec.yaml", "--account", "acme"},
		"a list of everything":   {"process", "list"},
		"too large a list":       {"process", "list", "--namespace", "shop", "--limit", "1001"},
		"a process nowhere":      {"process", "show", "--namespace", "shop", "--name", "web"},
		"a process, which":       {"process", "show", "--namespace", "shop", host},
		"registering nothing":    {"registration", "add", host},
		"registering nowhere":    {"registration", "add", "-f", "testdata/spec.yaml"},
		"registering no name":    {"registration", "add", host, "-f", "testdata/nameless.yaml"},
		"two standard inputs":    {"registration", "add", "--hosts-file", "-", "-f", "-"},
		"removing what":          {"registration", "remove", host},
		"freezing for no time":   {"freeze", host},
		"freezing nothing":       {"freeze", "--for", "1h"},
		"lifting nothing":        {"freeze", "lift"},
		"freezing an argument":   {"freeze", "list", "x"},
		"events of a bad host":   {"events", "--host", "10.0.0.1"},
		"events since when":      {"events", "--since", "yesterday"},
		"a limit of all events":  {"events", "--since", "1h", "--limit", "7"},
		"no hosts in the file":   {"op", "start", "--registered", "--namespace", "a", "--name", "b", "--hosts-file", os.DevNull},
		"a bad server":           {"task", "list", "--server", "localhost"},
		"a bad token":            {"task", "list", "--token", "a\nb"},
		"a bad state":            {"task", "results", "x", "--state", "sad"},
		"an unset variable":      {"task", "watch", ""},
		"two tasks":              {"task", "get", "x", "y"},
		"a page of nothing":      {"task", "list", "--limit", "-1"},
		"too large a page":       {"task", "list", "--limit", "1001"},
		"less than no results":   {"task", "results", "x", "--limit", "-1"},
		"off loopback":           {"up", "--http", "0.0.0.0:8080"},
		"no host part":           {"up", "--http", ":8080"},
		"two kinds of NATS":      {"up", "--nats", "nats://x", "--nats-listen", "127.0.0.1:4222"},
		"demo with a bad pause":  {"up", "--demo=-1s"},
		"demo without an agent":  {"up", "--demo", "--agent=false"},
		"a bad log level":        {"up", "--log-level", "loud"},
		"dispatcher exposed":     {"dispatcher", "--http", "10.1.2.3:80"},
		"agent without address":  {"agent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := call(t, args...)
			if code != command.ExitUsage || !strings.Contains(stderr, "--help") {
				t.Errorf("procfleet %v: exit %d, want %d; %s", args, code, command.ExitUsage, stderr)
			}
		})
	}
}

func TestAMisspeltKeyOfASpecIsNamed(t *testing.T) {
	t.Parallel()
	_, _, stderr := call(t, "op", "start", "--host=0:10.0.0.1", "-f", "testdata/misspelt.yaml")
	if !strings.Contains(stderr, "proc_nam") {
		t.Errorf("%s", stderr)
	}
}

func TestRefusalToListenSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"up", "--http", "0.0.0.0:8080"}, {"dispatcher", "--http", "0.0.0.0:8080"},
	} {
		_, _, stderr := call(t, args...)
		if !strings.Contains(stderr, "127.0.0.1") || !strings.Contains(stderr, "--allow-unauthenticated") {
			t.Errorf("%v: %s", args, stderr)
		}
	}
}

func TestWithoutAServerTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	code, _, stderr := call(t, "task", "list", "--server", "http://127.0.0.1:1")
	if code != command.ExitFailed || !strings.Contains(stderr, "procfleet up") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// The environment belongs to the process, so this test is not parallel.
func TestFlagsComeFromTheEnvironmentToo(t *testing.T) {
	t.Setenv("PROCFLEET_SERVER", "http://127.0.0.1:1")
	if _, _, stderr := call(t, "task", "list"); !strings.Contains(stderr, "127.0.0.1:1:") {
		t.Errorf("the variable was not used: %s", stderr)
	}
	t.Setenv("PROCFLEET_LIMIT", "many")
	if code, _, stderr := call(t, "task", "list"); code != command.ExitUsage || !strings.Contains(stderr, "PROCFLEET_LIMIT") {
		t.Errorf("exit %d, the variable is not named: %s", code, stderr)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"version": "procfleet " + command.Build(), "--version": "procfleet version " + command.Build()} {
		if code, stdout, _ := call(t, word); code != 0 || stdout != want+"\n" {
			t.Errorf("%s: exit %d, got %q, want %q", word, code, stdout, want)
		}
	}
}

func TestHostsFileHasCommentsAndEachHostOnce(t *testing.T) {
	t.Parallel()
	cmd := newOp()
	cmd.SetIn(strings.NewReader("# the fleet\n0:10.0.0.1\n\n0:10.0.0.2 # second\n0:10.0.0.1\n"))
	f := hostFlags{names: []string{"3:fd00::1"}, file: "-"}
	hosts, err := f.all(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(hosts); got != "[3:fd00::1 0:10.0.0.1 0:10.0.0.2]" {
		t.Errorf("hosts %s", got)
	}
}

func TestAWrongLineOfAHostsFileIsNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts.txt")
	if err := os.WriteFile(path, []byte("# the fleet\n0:10.0.0.1\n10.0.0.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, stderr := call(t, "op", "status", "-f", "testdata/spec.yaml", "--hosts-file", path)
	if want := path + `:3: host "10.0.0.2"`; !strings.Contains(stderr, want) {
		t.Errorf("%q does not name %s", stderr, want)
	}
}

func TestARoleThatIsStoppedWhileItWaitsEndsWell(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("received terminated"))
	for _, args := range [][]string{
		{"worker", "--nats", "nats://127.0.0.1:1"},
		{"worker", "--nats", "nats://127.0.0.1:1", "--otlp", "http://127.0.0.1:1"},
		{"agent", "--nats", "nats://127.0.0.1:1", "--ip", "127.0.0.1", "--data", t.TempDir()},
		{"dispatcher", "--http", "127.0.0.1:0", "--nats", "nats://127.0.0.1:1"},
		{"up", "--http", "127.0.0.1:0", "--nats", "nats://127.0.0.1:1", "--agent=false", "--data", t.TempDir()},
		{"up", "--http", "127.0.0.1:0", "--redis", "redis://127.0.0.1:1", "--agent=false", "--data", t.TempDir()},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(ctx, append(args, "--log-level=error"), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
			t.Errorf("%v: exit %d, %s", args, code, stderr.String())
		}
	}
}

func TestAnAddressInUseIsToldBeforeAnythingIsStarted(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing depends on it
	data := filepath.Join(t.TempDir(), "data")
	for _, args := range [][]string{
		{"up", "--data", data, "--nats", "nats://127.0.0.1:1"},
		{"dispatcher", "--nats", "nats://127.0.0.1:1"},
	} {
		code, _, stderr := call(t, append(args, "--http", l.Addr().String())...)
		want := "procfleet: --http: " + l.Addr().String() + " is in use: choose another address\n"
		if code != command.ExitFailed || stderr != want {
			t.Errorf("%v: exit %d, %q, want %q", args, code, stderr, want)
		}
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data folder was made: %v", err)
	}
}

func TestAnUnknownAnswerComesWithTheKeyToRepeatWith(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Idempotency-Key")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"code":"unknown","message":"unknown whether task GSETASK:1:2 was accepted","task":"GSETASK:1:2"}}`)
	}))
	t.Cleanup(server.Close)
	code, _, stderr := call(t, "op", "status", "--host=0:10.0.0.1", "-f", "testdata/spec.yaml", "--server", server.URL)
	if code != command.ExitFailed || !strings.Contains(stderr, "GSETASK:1:2") || !strings.Contains(stderr, "--idempotency-key "+<-keys) {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestACommandThatAsksAgainSaysSoOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked <= 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"the server is starting"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"id":"GSETASK:1:2"}`)
	}))
	t.Cleanup(server.Close)
	code, stdout, stderr := call(t, "op", "status", "--host=0:10.0.0.1", "-f", "testdata/spec.yaml", "--server", server.URL)
	if code != 0 || !strings.Contains(stdout, "GSETASK:1:2") || strings.Contains(stdout, "starting") {
		t.Errorf("exit %d, %s", code, stdout)
	}
	if !strings.Contains(stderr, "the server is starting; retrying for up to 2s\n") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("said %q", stderr)
	}
}
