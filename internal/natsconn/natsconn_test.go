package natsconn_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

func startServer(t *testing.T, dir, listen string) *natsembed.Server {
	t.Helper()
	server, err := natsembed.Start(natsembed.Config{StoreDir: dir, Listen: listen, Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server
}

func TestConnectsOnceTheServerIsThereAndComesBackAfterARestart(t *testing.T) {
	t.Parallel()
	listen, dir := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), t.TempDir()
	reconnected := make(chan struct{}, 1)
	nc, err := natsconn.Connect(natsconn.Config{
		URL: "nats://" + listen, Name: t.Name(), Log: testenv.Log(t),
		OnReconnect: func() { reconnected <- struct{}{} },
	})
	if err != nil {
		t.Fatalf("connecting before the server is there: %v", err)
	}
	defer nc.Close()

	server := startServer(t, dir, listen)
	testenv.Eventually(t, 20*time.Second, nc.IsConnected, "the first connection")

	server.Shutdown()
	testenv.Eventually(t, 20*time.Second, func() bool { return !nc.IsConnected() }, "the connection is lost")
	if err := nc.Publish("x", nil); err == nil {
		t.Error("publishing while away was accepted; want an error instead of a hidden buffer")
	}
	startServer(t, dir, listen)
	select {
	case <-reconnected:
	case <-time.After(20 * time.Second):
		t.Fatal("not reconnected")
	}
}

func TestMissingLogIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := natsconn.Connect(natsconn.Config{URL: "nats://127.0.0.1:1"}); err == nil {
		t.Error("a connection without a log was opened")
	}
}

func TestWhatIsNoURLOfNATSIsRefused(t *testing.T) {
	t.Parallel()
	for url, good := range map[string]bool{
		"nats://127.0.0.1:1": true, "127.0.0.1:1": true, "tls://[::1]:1, nats://user:word@127.0.0.1:1": true,
		"foo://127.0.0.1:1": false, "nats://": false, "": false, "nats://127.0.0.1:1,": false, "nats://a b": false,
	} {
		nc, err := natsconn.Connect(natsconn.Config{URL: url, Log: testenv.Silent()})
		if (err == nil) != good {
			t.Errorf("%q: %v", url, err)
		}
		if err == nil {
			nc.Close()
		}
	}
}

func TestTheLogSaysWhyAServerIsNotReached(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	logger := logrus.New()
	logger.SetOutput(&log)
	nc, err := natsconn.Connect(natsconn.Config{URL: "nats://127.0.0.1:1", Log: logger})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if text := log.String(); !strings.Contains(text, "127.0.0.1:1") || !strings.Contains(text, "refused") {
		t.Errorf("log: %s", text)
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
