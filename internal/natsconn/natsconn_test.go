package natsconn_test

import (
	"fmt"
	"testing"
	"time"

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
