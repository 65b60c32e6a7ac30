package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// roles returns the commands that run until they are stopped, each with valid arguments.
func roles(t *testing.T) map[string][]string {
	t.Helper()
	both, lean := testenv.BuildBinary(t, "./cmd/procfleet"), testenv.BuildBinary(t, "./cmd/procfleet-agent")
	return map[string][]string{
		"up": {both, "up"}, "dispatcher": {both, "dispatcher"}, "worker": {both, "worker"},
		"agent": {both, "agent", "--ip", "10.0.0.1"}, "procfleet-agent": {lean, "--ip", "10.0.0.1"},
	}
}

// runProgram runs a command to its end in a folder of its own.
func runProgram(t *testing.T, words []string, env ...string) (code int, stdout, stderr, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String(), cmd.Dir
}

func TestFiveMistakesAreToldInFiveLinesByEveryRole(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "procfleet.yaml")
	text := "nats: foo://x\nlog-level: loud\nnats-lisen: 1\nstatus-http: nowhere\nlog-level: info\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, words := range roles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr, dir := runProgram(t, append(slices.Clone(words), "--config", file))
			if code != command.ExitUsage || stdout != "" {
				t.Errorf("exit %d, want %d; said %s", code, command.ExitUsage, stdout)
			}
			for i, want := range []string{"nats: ", "log-level: \"loud\"", "nats-lisen: no such setting", "status-http: \"nowhere\"", "log-level: already set on line 2"} {
				if line := fmt.Sprintf("\n%s:%d: %s", file, i+1, want); strings.Count(stderr, line) != 1 {
					t.Errorf("no line %q in\n%s", line, stderr)
				}
			}
			if n := strings.Count(stderr, "\n"); n != 6 {
				t.Errorf("%d lines, want the five and one that counts them:\n%s", n, stderr)
			}
			untouched(t, dir)
		})
	}
}

func untouched(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v (%v)", left, err)
	}
}

func TestACheckTouchesNothing(t *testing.T) {
	t.Parallel()
	// The test detects a process that binds one of these addresses or connects to it.
	busy, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan struct{}, 10)
	go func() {
		for {
			conn, err := busy.Accept()
			if err != nil {
				return // the test is over
			}
			connected <- struct{}{}
			_ = conn.Close() // the message is sent
		}
	}()
	t.Cleanup(func() { _ = busy.Close() }) // nothing depends on it
	for name, words := range roles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			words = append(slices.Clone(words), "--check-config", "--status-http", busy.Addr().String(), "--nats", "nats://me:word@"+busy.Addr().String())
			if strings.HasSuffix(name, "agent") {
				words = append(words, "--data", "data")
			}
			code, stdout, stderr, dir := runProgram(t, words, "PROCFLEET_LOG_FORMAT=json", "PROCFLEET_REDIS=redis://"+busy.Addr().String())
			if code != 0 || stderr != "" {
				t.Errorf("exit %d: %s", code, stderr)
			}
			shown := strings.Join(strings.Fields(stdout), " ")
			for _, want := range []string{"configuration is fine", "nats nats://xxxxx@" + busy.Addr().String() + " (--nats)", "log-format json (PROCFLEET_LOG_FORMAT)"} {
				if !strings.Contains(shown, want) {
					t.Errorf("no %q in\n%s", want, stdout)
				}
			}
			untouched(t, dir)
			select {
			case <-connected:
				t.Error("it opened a connection")
			default:
			}
		})
	}
}

// status sends a GET request and returns the HTTP status; 0 = no response.
func status(url string) (code int, text string) {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func waitStatus(t *testing.T, url string, want int, word string) {
	t.Helper()
	testenv.Eventually(t, startTimeout, func() bool {
		code, text := status(url)
		return code == want && strings.Contains(text, word)
	}, fmt.Sprintf("%s answers %d with %q", url, want, word))
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
}

func TestReadinessFollowsNATS(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	binary, nats := testenv.BuildBinary(t, "./cmd/procfleet"), freeAddress(t)
	startNATS := func(data string) *testenv.Child {
		return testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "nats-server", "--listen", nats, "--data", data)
	}
	urls := []string{}
	common := []string{"--nats", "nats://" + nats}
	for _, words := range [][]string{
		{"worker", "--redis", "redis://" + redis.Addr + "/0"},
		{"agent", "--ip", "10.0.0.1", "--data", t.TempDir()},
		{"dispatcher", "--http", "127.0.0.1:0", "--redis", "redis://" + redis.Addr + "/0"},
	} {
		address := freeAddress(t)
		testenv.StartChild(t, nil, binary, append(append(words, common...), "--status-http", address)...)
		urls = append(urls, "http://"+address)
	}
	for _, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusServiceUnavailable, "NATS (the log says why)")
		waitStatus(t, url+"/healthz", http.StatusOK, "ok")
	}
	data := t.TempDir()
	server := startNATS(data)
	for _, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusOK, "ready")
	}
	server.Signal(syscall.SIGTERM)
	server.Wait(t, startTimeout)
	for _, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusServiceUnavailable, "not connected to NATS")
	}
	startNATS(data)
	for _, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusOK, "ready")
	}
	if code, text := status(urls[1] + "/metrics"); code != http.StatusOK || !strings.Contains(text, "procfleet_agent_connected 1") {
		t.Errorf("metrics of the agent: %d\n%s", code, text)
	}
	if code, _ := status(urls[0] + "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles without --pprof: %d", code)
	}
}

// A role that cannot use the streams ends with an error. The error is logged, so it must contain no
// passwords.
func TestPasswordsOfServersAreInNoError(t *testing.T) {
	t.Parallel()
	nats, redis := testenv.StartNATS(t), redistest.Start(t)
	if err := nats.JS.DeleteStream(t.Context(), bus.StreamOps); err != nil {
		t.Fatal(err)
	}
	foreign := jetstream.StreamConfig{Name: bus.StreamOps, Subjects: []string{"procfleet.op.*.*"}, Storage: jetstream.MemoryStorage}
	if _, err := nats.JS.CreateStream(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(nats.URL, "//", "//someone:quite-secret@", 1)
	binary := testenv.BuildBinary(t, "./cmd/procfleet")
	for _, role := range []string{"dispatcher", "worker"} {
		code, _, stderr, _ := runProgram(t, []string{binary, role, "--nats", url, "--redis", redis.URL()})
		if code != command.ExitFailed || !strings.Contains(stderr, bus.StreamOps) || strings.Contains(stderr, "quite-secret") {
			t.Errorf("%s: exit %d: %s", role, code, stderr)
		}
	}
}

// A server ends a connection for good, for example, after a message that exceeds a limit which was
// lowered meanwhile. The client library does not reconnect then.
func TestARoleWhoseConnectionIsEndedForGoodEnds(t *testing.T) {
	t.Parallel()
	url := endingNATS(t)
	redis := redistest.Start(t)
	for role, words := range roles(t) {
		switch role {
		case "up", "agent":
			continue // of the same parts as the others
		case "dispatcher":
			words = append(words, "--http", "127.0.0.1:0", "--redis", redis.URL())
		case "worker":
			words = append(words, "--redis", redis.URL())
		}
		code, _, stderr, _ := runProgram(t, append(words, "--nats", url))
		if code != command.ExitFailed || !strings.Contains(stderr, "ended the connection for good: nats: Maximum Payload Violation") {
			t.Errorf("%s: exit %d: %s", role, code, stderr)
		}
	}
}

// endingNATS accepts connections like a NATS server, and then ends each connection for good.
func endingNATS(t *testing.T) (url string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		fmt.Fprint(conn, `INFO {"server_id":"S","version":"2.11.0","proto":1,"headers":true,"max_payload":1048576}`+"\r\n")
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if lines.Text() == "PING" {
				fmt.Fprint(conn, "PONG\r\n-ERR 'Maximum Payload Violation'\r\n")
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "nats://" + listener.Addr().String()
}

func TestProfilesAreForThisMachineAlone(t *testing.T) {
	t.Parallel()
	for name, words := range roles(t) {
		for _, refused := range [][]string{{"--pprof"}, {"--pprof", "--status-http", "0.0.0.0:9090"}, {"--pprof", "--status-http", ":9090"}} {
			code, _, stderr, _ := runProgram(t, append(slices.Clone(words), refused...))
			if code != command.ExitUsage || !strings.Contains(stderr, "--pprof: profiles") || !strings.Contains(stderr, "127.0.0.1") {
				t.Errorf("%s %v: exit %d: %s", name, refused, code, stderr)
			}
		}
	}
	address := freeAddress(t)
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-agent"), "--ip", "10.0.0.1", "--data", t.TempDir(),
		"--nats", "nats://127.0.0.1:1", "--status-http", address, "--pprof")
	waitStatus(t, "http://"+address+"/debug/pprof/goroutine?debug=1", http.StatusOK, "goroutine profile")
}

// The address of a dispatcher and of up is served from the start of the process, also while the role waits
// for its servers and takes the address over.
func TestARoleThatWaitsForItsServersAnswersAllTheSame(t *testing.T) {
	t.Parallel()
	redis, binary, nats := redistest.Start(t), testenv.BuildBinary(t, "./cmd/procfleet"), freeAddress(t)
	redis.Stop(t)
	children, urls := map[string]*testenv.Child{}, map[string]string{}
	for role, more := range map[string][]string{"dispatcher": nil, "up": {"--agent=false", "--data", t.TempDir()}} {
		address := freeAddress(t)
		args := append([]string{role, "--http", address, "--nats", "nats://" + nats, "--redis", redis.URL() + "/0"}, more...)
		children[role], urls[role] = testenv.StartChild(t, nil, binary, args...), "http://"+address
	}
	for role, url := range urls {
		waitStatus(t, url+"/healthz", http.StatusOK, "ok")
		waitStatus(t, url+"/readyz", http.StatusServiceUnavailable, "waiting for NATS (the log says why)")
		comeAgain(t, role, url)
	}
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "nats-server", "--listen", nats, "--data", t.TempDir())
	for _, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusServiceUnavailable, "waiting for Redis")
		if _, text := status(url + "/readyz"); strings.Contains(text, redis.Addr) {
			t.Errorf("%s says where Redis is: %s", url, text)
		}
	}
	stopAsking := alwaysAnswered(t, urls["dispatcher"]+"/healthz")
	redis.Restart(t)
	for role, url := range urls {
		waitStatus(t, url+"/readyz", http.StatusOK, "ready")
		if line := children[role].WaitOutput(t, startTimeout, `"msg":"ready"`); !strings.Contains(line, `"version":"`) {
			t.Errorf("%s: the version is in %s", role, line)
		}
	}
	stopAsking()

	redis.Stop(t)
	for _, url := range urls { // not only that some time was over
		waitStatus(t, url+"/readyz", http.StatusServiceUnavailable, "task store unavailable (the log says why)")
	}
}

// comeAgain verifies the response to a request that arrives before the role is ready.
func comeAgain(t *testing.T, role, url string) {
	t.Helper()
	resp, err := http.Post(url+"/v1/tasks", "application/json", strings.NewReader(strings.Repeat(" ", 5<<20)))
	if err != nil {
		t.Fatalf("%s: %v", role, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	var answer struct {
		Error struct{ Code, Message string } `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Errorf("%s: %v", role, err)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" ||
		answer.Error.Code != "unavailable" || !strings.Contains(answer.Error.Message, "starting") {
		t.Errorf("%s: %s, %v, %+v", role, resp.Status, resp.Header, answer)
	}
}

// alwaysAnswered sends requests, each on a new connection, until stop is called. Each must receive a
// response.
func alwaysAnswered(t *testing.T, url string) (stop func()) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout}
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			resp, err := client.Get(url)
			if err != nil {
				t.Errorf("not answered: %v", err)
				return
			}
			if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", url, resp.Status)
			}
		}
	})
	return func() { cancel(); asking.Wait() }
}
