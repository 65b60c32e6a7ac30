// Package testenv provides the infrastructure of tests: an in-process NATS server, built
// binaries, and child processes that tests can kill. Only tests import it.
package testenv

import (
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
)

// NATS is an in-process NATS server of one test, with the streams created.
type NATS struct {
	Server *natsembed.Server
	URL    string // address for connections from other processes
	Conn   *nats.Conn
	JS     jetstream.JetStream
	Bus    *bus.Bus
}

// StartNATS starts a server on a free loopback port, with its data in the temporary folder
// of the test. The server is stopped at the end of the test.
func StartNATS(tb testing.TB) *NATS {
	tb.Helper()
	log := Log(tb)
	server, err := natsembed.Start(natsembed.Config{
		StoreDir: tb.TempDir(), Listen: "127.0.0.1:0", MaxStore: 2 << 30, Log: log,
	})
	if err != nil {
		tb.Fatalf("start NATS: %v", err)
	}
	tb.Cleanup(server.Shutdown)
	n := &NATS{Server: server, URL: server.ClientURL()}
	n.Conn = Connect(tb, n.URL)
	if n.JS, err = bus.JetStream(n.Conn); err != nil {
		tb.Fatal(err)
	}
	if err := bus.Ensure(tb.Context(), n.JS, bus.Options{}); err != nil {
		tb.Fatalf("prepare the streams: %v", err)
	}
	n.Bus = bus.New(n.JS)
	return n
}

// Connect opens a new connection to a server. The connection is closed at the end of the
// test.
func Connect(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	return connect(tb, natsconn.Config{URL: url})
}

// ConnectAsServer is [Connect] with the credentials of dispatchers and workers that
// `procfleet up` created in its data folder data.
func ConnectAsServer(tb testing.TB, url, data string) *nats.Conn {
	tb.Helper()
	return connect(tb, natsconn.Config{
		URL: url, InboxPrefix: natsauth.ServerInbox,
		Credentials: func() ([]byte, error) { return natsauth.ReadCredentials(ServerCredentials(data)) },
	})
}

// ServerCredentials returns the path of the credentials file of dispatchers and workers in
// the data folder of `procfleet up`, for --nats-creds.
func ServerCredentials(data string) string { return filepath.Join(data, "nats-auth", "server.creds") }

func connect(tb testing.TB, cfg natsconn.Config) *nats.Conn {
	tb.Helper()
	cfg.Name, cfg.Log = tb.Name(), Log(tb)
	nc, err := natsconn.Connect(cfg)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// Log returns a logger that writes to the test log and discards entries after the test
// ends, because connection callbacks may run after the end.
func Log(tb testing.TB) logrus.FieldLogger {
	tb.Helper()
	log := logrus.New()
	log.SetOutput(tb.Output())
	tb.Cleanup(func() { log.SetOutput(io.Discard) })
	log.SetLevel(logrus.InfoLevel)
	return log
}

// Silent returns a logger that discards all entries, for benchmarks.
func Silent() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// Eventually polls cond until it returns true, and fails the test after timeout. what
// describes the condition in the failure message. The interval grows with the time waited,
// because a condition often costs a request, and many tests wait at the same time.
func Eventually(tb testing.TB, timeout time.Duration, cond func() bool, what string) {
	tb.Helper()
	const shortest, longest = 5 * time.Millisecond, 50 * time.Millisecond
	for start := time.Now(); !cond(); {
		waited := time.Since(start)
		if waited > timeout {
			tb.Fatalf("not within %v: %s", timeout, what)
		}
		time.Sleep(min(max(waited/20, shortest), longest))
	}
}

// Range of ports for test servers. It is below the ephemeral ports of outgoing connections
// (from 32768 on Linux, from 49152 on other systems), so that the port of a killed server
// is still free when the server is restarted.
const firstPort, lastPort = 10_000, 30_000

// FreePort returns a loopback TCP port that is not in use, and reserves it until the end of
// the test. Use it for servers that cannot report an automatically assigned port, or that
// need the same port after a restart.
//
// The reservation is the UDP port of the same number: it excludes every other FreePort on
// the machine and leaves the TCP port to the server, also between its restarts.
func FreePort(tb testing.TB) int {
	tb.Helper()
	const tries = 100
	var err error
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var reservation net.PacketConn
		if reservation, err = net.ListenPacket("udp", addr); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			err = l.Close()
		}
		if err == nil {
			tb.Cleanup(func() { _ = reservation.Close() }) // nothing was sent
			return port
		}
		_ = reservation.Close() // nothing was sent
	}
	tb.Fatalf("find a free port: %v", err)
	return 0
}

// FreeAddress returns 127.0.0.1 with a [FreePort].
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(tb)))
}
