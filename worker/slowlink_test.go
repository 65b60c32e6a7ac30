package worker_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/worker"
)

// slowLink returns the URL of a proxy to the server at to, which delays all data in both directions.
func slowLink(t *testing.T, to string, delay time.Duration) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(to, "nats://"))
			if err != nil {
				near.Close()
				return
			}
			go pass(near, far, delay)
			go pass(far, near, delay)
		}
	}()
	return "nats://" + l.Addr().String()
}

// pass copies data from one connection to the other with a delay, until either is closed.
func pass(from, to net.Conn, delay time.Duration) {
	type said struct {
		text []byte
		due  time.Time
	}
	line := make(chan said, 1024)
	go func() {
		defer to.Close()
		for s := range line {
			<-time.After(time.Until(s.due))
			if _, err := to.Write(s.text); err != nil {
				from.Close() // ends the reading
			}
		}
	}()
	defer close(line)
	for {
		text := make([]byte, 32<<10)
		n, err := from.Read(text)
		if err != nil {
			return
		}
		line <- said{text[:n], time.Now().Add(delay)}
	}
}

// startSlowLink runs a worker that connects to NATS through a slow link.
func startSlowLink(t *testing.T) *env {
	t.Helper()
	e, _, _ := startRestartable(t)
	e.stop()
	js, err := bus.JetStream(testenv.Connect(t, slowLink(t, e.URL, 200*time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	e.startWorker(unswept, func(c *worker.Config) { c.Bus = bus.New(js) })
	return e
}

// slowlyGiven is the number of messages that a test on a slow link publishes, one after the
// other. Each arrives at another time within the worker's pull requests of half a second.
const slowlyGiven = 12

// givenOnce fails if the broker redelivered more than a quarter of the messages.
func givenOnce(t *testing.T, consumer jetstream.Consumer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if given := consumer.CachedInfo().Delivered.Consumer; given > slowlyGiven+slowlyGiven/4 {
		t.Errorf("%d messages were given out %d times", slowlyGiven, given)
	}
}

// A worker must process a chunk that the broker delivers just when the pull request expires.
// Otherwise the chunk is redelivered only after the ack wait, as if the worker had died.
func TestChunksGivenAtTheEndOfARequestAreNotLostOnASlowLink(t *testing.T) {
	t.Parallel()
	e := startSlowLink(t)
	e.agent(host(1), accept)
	for range slowlyGiven {
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
	}
	consumer, err := e.Bus.DeliverConsumer(t.Context(), procfleet.LaneSmall)
	givenOnce(t, consumer, err)
}
