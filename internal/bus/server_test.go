package bus_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

// No request can remove messages of a stream, also of a stream that an operator created.
func TestNoRequestRemovesMessagesOfAStream(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	if err := env.JS.DeleteStream(t.Context(), bus.StreamAudit); err != nil {
		t.Fatal(err)
	}
	own := jetstream.StreamConfig{Name: bus.StreamAudit, Subjects: []string{"procfleet.audit.>"}, Discard: jetstream.DiscardOld, MaxBytes: 1 << 20}
	if _, err := env.JS.CreateStream(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), env.JS, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	for info := range env.JS.ListStreams(t.Context()).Info() {
		name := info.Config.Name
		subject := strings.NewReplacer("*", "3", ">", "x").Replace(info.Config.Subjects[0])
		ack, err := env.JS.Publish(t.Context(), subject, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		stream, err := env.JS.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.DeleteMsg(t.Context(), ack.Sequence); err == nil {
			t.Errorf("%s: a message is deleted", name)
		}
		if err := stream.Purge(t.Context()); err == nil && name != bus.StreamSubmitTrials {
			t.Errorf("%s is purged", name)
		}
	}
}

func TestAServerThatIsNotStrictIsRefused(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(), NoJetStreamStrict: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	refuses(t, s.ClientURL(), "is not strict", "strict: false")
}

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	for version, refused := range map[string]bool{
		"2.11.17": true, "2.12.6": true, "2.12.7-RC.1": false, "2.12.7": false, "2.13.0": false, "2.9.30": true, "1.4.1": true, "3.0.0": false,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			url := serverOfVersion(t, version)
			if refused {
				refuses(t, url, "has version "+version, "2.12.7 or later")
			} else {
				refuses(t, url, "is not strict") // the check after the version
			}
		})
	}
}

// Servers that have just started have no leader of JetStream, and reply to no
// request of it.
func TestAServerWhoseJetStreamDoesNotReplyIsAskedAgain(t *testing.T) {
	t.Parallel()
	conn := testenv.Connect(t, serverOfVersion(t, "2.12.7-silent"))
	testenv.Eventually(t, 30*time.Second, conn.IsConnected, "connected")
	js, err := bus.JetStream(conn)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- bus.Ensure(t.Context(), js, bus.Options{}) }()
	select {
	case err := <-ended:
		if !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("%v, want %v", err, bus.ErrUnavailable)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for one reply for ever")
	}
}

// serverOfVersion starts a fake NATS server with the given version and returns its address. The server
// replies to every request like a server that is not strict, or, if the version ends with "silent",
// never replies.
func serverOfVersion(t *testing.T, version string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // it ends with the test
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go speak(conn, version)
		}
	}()
	return "nats://" + listener.Addr().String()
}

func speak(conn net.Conn, version string) {
	defer conn.Close()
	fmt.Fprintf(conn, "INFO {\"server_id\":\"x\",\"server_name\":\"x\",\"version\":%q,\"max_payload\":1048576,\"headers\":true}\r\n", version)
	var subscription string
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0:
		case words[0] == "PING":
			fmt.Fprint(conn, "PONG\r\n")
		case words[0] == "SUB":
			subscription = words[len(words)-1]
		case words[0] == "PUB" && len(words) == 4 && !strings.HasSuffix(version, "silent"):
			fmt.Fprintf(conn, "MSG %s %s 2\r\n{}\r\n", words[2], subscription)
		}
	}
}

func refuses(t *testing.T, url string, says ...string) {
	t.Helper()
	conn := testenv.Connect(t, url)
	testenv.Eventually(t, 30*time.Second, conn.IsConnected, "connected")
	js, err := bus.JetStream(conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = bus.Ensure(ctx, js, bus.Options{})
	for _, what := range says {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, which does not say %q", err, what)
		}
	}
}
