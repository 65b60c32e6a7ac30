package natsintake

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

// systemClock is the clock of a store that is available.
type systemClock struct{}

func (systemClock) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func TestATrialThatEndsWhileNATSIsAwayIsTakenBackAfterwards(t *testing.T) {
	t.Parallel()
	where := natsembed.Config{
		StoreDir: t.TempDir(), MaxStore: 1 << 30, Log: testenv.Log(t),
		Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t))),
	}
	start := func() *natsembed.Server {
		server, err := natsembed.Start(where)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Shutdown)
		return server
	}
	server := start()
	js, err := bus.JetStream(testenv.Connect(t, server.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), js, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	broker := bus.New(js)
	in, err := New(&Config{Bus: broker, Clock: systemClock{}, Accept: 10 * time.Second, Log: testenv.Log(t), Meter: noop.Meter{}})
	if err != nil {
		t.Fatal(err)
	}
	s := &bus.Submission{Sequence: 17, Stored: time.Now(), Delivered: trusted + 1}
	trial, err := in.Suspect(t.Context(), s, "mine")
	if err != nil {
		t.Fatal(err)
	}
	another := broker.NewTrial(s, "another")
	if n, err := another.Before(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d trials are noted, %v; want 1", n, err)
	}
	server.Shutdown()
	over := make(chan struct{})
	go func() { defer close(over); trial.Acquit() }()
	start()
	<-over
	if n, err := another.Before(t.Context()); n != 0 || err != nil {
		t.Errorf("%d trials stay noted, %v", n, err)
	}
}
