package bus_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestEveryWorkerReceivesTheHintOfAPause(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	held := make(chan procfleet.TaskID, 10)
	for range 2 {
		conn := testenv.Connect(t, env.URL)
		js, err := bus.JetStream(conn)
		if err != nil {
			t.Fatal(err)
		}
		stop, err := bus.New(js).FollowHolds("", func(id procfleet.TaskID) { held <- id })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.Bus.Hold(sampleTask); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case id := <-held:
			if id != sampleTask {
				t.Errorf("task %s, want %s", id, sampleTask)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a worker did not receive the hint")
		}
	}
}
