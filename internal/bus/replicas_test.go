package bus_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// startCluster starts three servers and returns once they keep replicas.
func startCluster(t *testing.T) jetstream.JetStream {
	t.Helper()
	program := testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2")
	const servers = 3
	var routes, clients []string
	for range servers {
		routes = append(routes, "nats://"+loopback(t))
		clients = append(clients, loopback(t))
	}
	for i := range servers {
		host, port, err := net.SplitHostPort(clients[i])
		if err != nil {
			t.Fatal(err)
		}
		testenv.StartChild(t, nil, program, "-a", host, "-p", port, "-n", fmt.Sprint("n", i), "-js", "-sd", t.TempDir(),
			"-cluster_name", "c", "-cluster", routes[i], "-routes", strings.Join(routes, ","))
	}
	js, err := bus.JetStream(testenv.Connect(t, "nats://"+strings.Join(clients, ",nats://")))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "probe", Replicas: servers})
		return err == nil
	}, "the cluster keeps three replicas")
	return js
}

func loopback(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
}

// TestAMissingStreamGetsTheReplicasOfTheOthers creates a stream, without the setting, in
// a cluster whose other streams were made with it.
func TestAMissingStreamGetsTheReplicasOfTheOthers(t *testing.T) {
	t.Parallel()
	js := startCluster(t)
	ensure := func(o bus.Options) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			return bus.Ensure(ctx, js, o) == nil
		}, "the streams are there")
	}
	ensure(bus.Options{Replicas: 3})
	if err := js.DeleteStream(t.Context(), bus.StreamSubmit); err != nil {
		t.Fatal(err)
	}
	ensure(bus.Options{})
	info := streamInfo(t, js, bus.StreamSubmit)
	if info.Config.Replicas != 3 {
		t.Errorf("the new stream has %d replicas, the others 3", info.Config.Replicas)
	}
	consumer, err := js.Consumer(t.Context(), bus.StreamSubmit, "dispatchers")
	if err != nil {
		t.Fatal(err)
	}
	if cluster := consumer.CachedInfo().Cluster; cluster == nil || len(cluster.Replicas) != 2 {
		t.Errorf("its consumer is kept by %+v, want a leader and two more", cluster)
	}
	if n := streamInfo(t, js, bus.StreamOps).Config.Replicas; n != 3 {
		t.Errorf("another stream has %d replicas now, want 3 as before", n)
	}
}
