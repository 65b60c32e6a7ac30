package bus_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestAnnouncementsOfWorkersArrive(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	conn := testenv.Connect(t, env.URL)
	js, err := bus.JetStream(conn)
	if err != nil {
		t.Fatal(err)
	}
	announced := make(chan *bus.Worker, 10)
	stop, err := bus.New(js).FollowWorkers(func(w *bus.Worker) { announced <- w })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, malformed := range []string{"", "{", `{"host":"without an id"}`, `[1]`} {
		if err := conn.Publish("procfleet.worker", []byte(malformed)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	want := bus.Worker{ID: "w", Host: "ops-1", Version: "1.4.0", Started: time.Now().UTC()}
	if err := env.Bus.AnnounceWorker(&want); err != nil {
		t.Fatal(err)
	}
	select {
	case w := <-announced:
		if *w != want {
			t.Errorf("announcement %+v, want %+v", w, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the announcement did not arrive")
	}
}
