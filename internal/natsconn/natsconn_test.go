package natsconn_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
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
		"nats://127.0.0.1:1,ws://127.0.0.1:2": false, "ws://127.0.0.1:1,wss://127.0.0.1:2": true,
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

// After a server has rejected the credentials, the client retries, because an operator may correct them.
// Unavailable returns the server's reason.
func TestAServerThatRefusesIsTriedAgainAndAwaySaysWhy(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nothing depends on it
	var tried atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			tried.Add(1)
			refuse(conn)
		}
	}()
	nc, err := natsconn.Connect(natsconn.Config{URL: "nats://me:word@" + listener.Addr().String(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	testenv.Eventually(t, 20*time.Second, func() bool { return tried.Load() > 3 }, "it is tried again")
	if why := natsconn.Unavailable(nc); why == nil || !strings.Contains(strings.ToLower(why.Error()), "authorization violation") {
		t.Errorf("why it is away: %v", why)
	}
}

func refuse(conn net.Conn) {
	defer func() { _ = conn.Close() }() // the message is sent
	_, _ = conn.Write([]byte(`INFO {"server_id":"x","version":"2.11.0","auth_required":true,"max_payload":1048576}` + "\r\n"))
	_, _ = bufio.NewReader(conn).ReadString('\n') // the CONNECT line
	_, _ = conn.Write([]byte("-ERR 'Authorization Violation'\r\n"))
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

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"nats://me:quite secret@127.0.0.1:1", `nats://me:quite"secret@127.0.0.1:1`, "nats://me:quite,secret@127.0.0.1:1",
		"nats://me:quite%secret@127.0.0.1:1", "me:quite/secret@127.0.0.1:1", "nats://me:quitesecret@127.0.0.1:x",
		"foo://quitesecret@127.0.0.1:1", "nats://me:quitesecret@127.0.0.1:1,ws://127.0.0.1:2",
	} {
		nc, err := natsconn.Connect(natsconn.Config{URL: url, Log: testenv.Silent()})
		if err == nil {
			nc.Close()
			t.Errorf("%s is taken", url)
			continue
		}
		if strings.Contains(err.Error(), "quite") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
