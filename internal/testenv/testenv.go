// Package testenv is the only place where tests get infrastructure from: an
// in-process NATS server, built binaries, child processes that can be killed.
// Only tests import it.
package testenv

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
)

// NATS is a server of the test's own, with the streams prepared.
type NATS struct {
	Server *natsembed.Server
	URL    string // for other processes
	Conn   *nats.Conn
	JS     jetstream.JetStream
	Bus    *bus.Bus
}

// StartNATS starts a server on a free loopback port with its data in the
// test's temporary folder. It ends with the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	log := Log(t)
	server, err := natsembed.Start(natsembed.Config{
		StoreDir: t.TempDir(), Listen: "127.0.0.1:0", MaxStore: 1 << 30, Log: log,
	})
	if err != nil {
		t.Fatalf("start NATS: %v", err)
	}
	t.Cleanup(server.Shutdown)
	n := &NATS{Server: server, URL: server.ClientURL()}
	n.Conn = Connect(t, n.URL)
	if n.JS, err = natsconn.JetStream(n.Conn); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), n.JS, bus.Options{}); err != nil {
		t.Fatalf("prepare the streams: %v", err)
	}
	n.Bus = bus.New(n.JS)
	return n
}

// Connect returns a connection of its own to a server. It ends with the test.
func Connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := natsconn.Connect(natsconn.Config{URL: url, Name: t.Name(), Log: Log(t)})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Log returns a logger that writes to the test's log.
func Log(t testing.TB) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(t.Output())
	log.SetLevel(logrus.InfoLevel)
	return log
}

// Silent returns a logger that writes nothing, for benchmarks.
func Silent() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// Eventually waits until cond holds and fails the test if it does not within
// timeout; what says what was waited for.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, what string) {
	t.Helper()
	const interval = 5 * time.Millisecond
	deadline := time.Now().Add(timeout)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
		<-ticker.C
	}
}

// FreePort returns a loopback TCP port that was free a moment ago, for
// servers that cannot report a port of their own choice.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
