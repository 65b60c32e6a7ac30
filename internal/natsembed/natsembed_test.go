package natsembed_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

// storeVariable makes this test binary a server on that folder, to be killed.
const storeVariable = "PROCFLEET_TEST_STORE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(storeVariable); dir != "" {
		serve(dir)
	}
	os.Exit(m.Run())
}

func serve(dir string) {
	server, err := natsembed.Start(natsembed.Config{StoreDir: dir, Listen: "127.0.0.1:0", Log: testenv.Silent()})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("url", server.ClientURL())
	select {} // until the test kills it
}

func open(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	js, err := bus.JetStream(testenv.Connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestAcknowledgedMessagesSurviveSIGKILL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const messages = 500
	child := testenv.StartChild(t, []string{storeVariable + "=" + dir}, self)
	js := open(t, strings.TrimPrefix(child.WaitOutput(t, 30*time.Second, "url "), "url "))
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for range messages {
		if _, err := js.Publish(t.Context(), "s", []byte("payload")); err != nil {
			t.Fatal(err)
		}
	}
	child.Kill()

	child = testenv.StartChild(t, []string{storeVariable + "=" + dir}, self)
	js = open(t, strings.TrimPrefix(child.WaitOutput(t, 30*time.Second, "url "), "url "))
	var stream jetstream.Stream
	testenv.Eventually(t, 10*time.Second, func() bool {
		stream, err = js.Stream(t.Context(), "S")
		return err == nil
	}, "the stream is there again")
	if n := stream.CachedInfo().State.Msgs; n != messages {
		t.Errorf("%d messages after the kill, want %d", n, messages)
	}
}

func TestInProcessServerListensNowhere(t *testing.T) {
	t.Parallel()
	server, err := natsembed.Start(natsembed.Config{StoreDir: t.TempDir(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	if url := server.ClientURL(); url != "" {
		t.Errorf("client URL %q, want none", url)
	}
	nc, err := natsconn.Connect(natsconn.Config{InProcess: server, Name: t.Name(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		t.Errorf("in-process connection: %v", err)
	}
}

func TestAnAddressInUseIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing depends on it
	_, err = natsembed.Start(natsembed.Config{StoreDir: t.TempDir(), Listen: l.Addr().String(), Log: testenv.Log(t)})
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error %v, want one that names %v", err, l.Addr())
	}
}

func TestMissingFieldsAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := natsembed.Start(natsembed.Config{}); err == nil {
		t.Error("a server without a store folder was started")
	}
}

// The streams of a server without authentication must be in the authority's account after the server has
// received an authority, as when `up` is started without --allow-unauthenticated for the first time.
func TestStreamsOfAnOpenServerAreThoseOfItsAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, err := natsembed.Start(natsembed.Config{StoreDir: dir, Listen: "127.0.0.1:0", Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	js := open(t, server.ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"procfleet.s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "procfleet.s", []byte("payload")); err != nil {
		t.Fatal(err)
	}
	server.Shutdown()

	authority, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broker, err := authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be repeated
		if err := natsembed.AdoptOpenStreams(dir, broker.Account); err != nil {
			t.Fatal(err)
		}
	}
	server, err = natsembed.Start(natsembed.Config{StoreDir: dir, Authority: broker, Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	credentials, err := authority.NewUser(natsauth.Server, "x", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := natsconn.Connect(natsconn.Config{
		InProcess: server, InboxPrefix: natsauth.ServerInbox, Name: t.Name(), Log: testenv.Log(t),
		Credentials: func() ([]byte, error) { return []byte(credentials), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if js, err = bus.JetStream(conn); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "S")
	if err != nil || stream.CachedInfo().State.Msgs != 1 {
		t.Errorf("%+v, %v", stream, err)
	}
}
