package dispatcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestOnlyLoopbackIsOpenToAll(t *testing.T) {
	t.Parallel()
	for listen, allowed := range map[string]bool{
		"127.0.0.1:0": true, "localhost:0": true, "[::1]:0": true, "127.8.8.8:1": true,
		"0.0.0.0:0": false, ":0": false, "[::]:0": false, "10.0.0.1:80": false, "example.com:80": false, "127.0.0.1": false,
	} {
		_, err := New(Config{Listen: listen, Log: testenv.Log(t)}, openStore(t), &fakeQueue{})
		if (err == nil) != allowed {
			t.Errorf("%s: %v", listen, err)
		}
	}
	if _, err := New(Config{Listen: "0.0.0.0:0", AllowUnauthenticated: true, Log: testenv.Log(t)}, openStore(t), &fakeQueue{}); err != nil {
		t.Errorf("allowed by name: %v", err)
	}
}

func TestRunFinishesWhatItHasBegunAndEnds(t *testing.T) {
	t.Parallel()
	queue := &fakeQueue{}
	inside, goOn := make(chan struct{}), make(chan struct{})
	queue.onPublish = func() { close(inside); <-goOn }
	front, stop, ended := run(t, testConfig(t), queue)
	if a := front.call(http.MethodGet, "/healthz", ""); a.status != http.StatusOK {
		t.Fatalf("healthz: %d", a.status)
	}
	answered := make(chan answer, 1)
	go func() { answered <- front.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1")) }()
	<-inside
	stop()
	testenv.Eventually(t, 5*time.Second, func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(front.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, "no new connections")
	close(goOn)
	if a := <-answered; a.body["result"] != true {
		t.Errorf("the request under way: %d %s", a.status, a.text)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func TestRunEndsAlthoughARequestDoesNot(t *testing.T) {
	t.Parallel()
	queue := &fakeQueue{}
	inside, goOn := make(chan struct{}), make(chan struct{})
	queue.onPublish = func() { close(inside); <-goOn }
	cfg := Config{Log: testenv.Silent()} // the request continues after the end of the test
	cfg.Timeouts.Drain = time.Millisecond
	front, stop, ended := run(t, cfg, queue)
	cut := make(chan error, 1)
	go func() {
		_, err := front.try(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), nil)
		cut <- err
	}()
	<-inside
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("the request was answered before it could go on")
	}
	close(goOn)
}

// run runs a dispatcher on a free port. stop ends it, and ended then receives the error that Run
// returned. The test must stop it.
func run(t *testing.T, cfg Config, queue Queue) (front *testServer, stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	bound := make(chan net.Addr, 1)
	cfg.Listen = "127.0.0.1:0"
	cfg.Listening = func(a net.Addr) { bound <- a }
	store := openStore(t)
	d, err := New(cfg, store, queue)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return &testServer{t: t, url: "http://" + (<-bound).String(), store: store}, stop, done
}

func TestForeignWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	a := d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), "Origin", "http://evil.example", "Content-Type", "text/plain")
	if a.status != http.StatusForbidden || d.tasks() != 0 {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestHealthReadinessAndMetrics(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Ready = func(context.Context) error { return errors.New("the worker is not there yet") }
	cfg.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "numbers") })
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	if a := d.call(http.MethodGet, "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("healthz: %d", a.status)
	}
	if a := d.call(http.MethodGet, "/readyz", ""); a.status != http.StatusServiceUnavailable || !strings.Contains(a.text, "worker") {
		t.Errorf("readyz: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodGet, "/metrics", ""); a.text != "numbers" {
		t.Errorf("metrics: %s", a.text)
	}
}

// Many clients write the whole body before they read the response. They must receive the reason of a
// rejection, too.
func TestACallerWhoSendsTooMuchCanReadTheAnswer(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Body = 8 << 20
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	const size = 12 << 20
	for name, framing := range map[string]struct {
		header, before, after string
	}{
		"with a length":    {header: fmt.Sprintf("Content-Length: %d", size)},
		"without a length": {header: "Transfer-Encoding: chunked", before: fmt.Sprintf("%x\r\n", size), after: "\r\n0\r\n\r\n"},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t, conn)
		head := "POST " + v2Path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + framing.header + "\r\n\r\n" + framing.before
		if _, err := io.WriteString(conn, head+strings.Repeat("x", size)+framing.after); err != nil {
			t.Fatalf("%s: send: %v", name, err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: read: %v", name, err)
		}
		defer closing(t, resp.Body)
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "1306406") {
			t.Errorf("%s: %d %s %v", name, resp.StatusCode, text, err)
		}
	}
}

func TestAccountsAreInTheMetrics(t *testing.T) {
	t.Parallel()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Meter, cfg.Metrics = registry.Meter("dispatcher"), registry.Handler()
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1", "10.0.0.2"))
	d.call(http.MethodDelete, nativePath, "")
	text := d.call(http.MethodGet, "/metrics", "").text
	for _, want := range []string{
		`procfleet_dispatcher_accepted_tasks_total{dialect="gse.operate_proc_v2"} 1`,
		`procfleet_dispatcher_accepted_items_total{dialect="gse.operate_proc_v2"} 2`,
		`procfleet_dispatcher_request_seconds_count{dialect="native.none",status="405"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

func TestARepeatedMessageIsWrittenOncePerSecond(t *testing.T) {
	t.Parallel()
	var o oncePerSecond
	now := time.Now()
	if !o.due(now) || o.due(now.Add(time.Millisecond)) || !o.due(now.Add(time.Second)) {
		t.Error("not once per second")
	}
}

// closing closes c and fails the test on an error.
func closing(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
