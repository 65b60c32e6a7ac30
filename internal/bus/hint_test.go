package bus_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

func hint(t *testing.T, b *bus.Bus, id procfleet.TaskID, over bool) {
	t.Helper()
	if err := b.Hint(id, over); err != nil {
		t.Fatal(err)
	}
}

func TestAHintReachesWhoFollowsTheTaskAndNobodyElse(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	js, err := bus.JetStream(testenv.Connect(t, env.URL))
	if err != nil {
		t.Fatal(err)
	}
	follower := bus.New(js)
	hints := make(chan bool, 10)
	stop, err := follower.Follow(t.Context(), sampleTask, func(over bool) { hints <- over })
	if err != nil {
		t.Fatal(err)
	}
	other := procfleet.Number(1_700_000_000_000_124).TaskID()
	var others atomic.Int32
	stopOther, err := follower.Follow(t.Context(), other, func(bool) { others.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stopOther()
	hint(t, env.Bus, sampleTask, false)
	hint(t, env.Bus, sampleTask, true)
	for _, want := range []bool{false, true} {
		select {
		case over := <-hints:
			if over != want {
				t.Errorf("over is %v, want %v", over, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the hint did not arrive")
		}
	}
	stop()
	hint(t, env.Bus, sampleTask, false)
	hint(t, env.Bus, other, false)
	testenv.Eventually(t, 30*time.Second, func() bool { return others.Load() == 1 }, "the hint of the other task")
	if len(hints) > 0 {
		t.Error("a hint came after stop")
	}
}

func TestNoStreamKeepsHints(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	hint(t, env.Bus, sampleTask, true)
	for _, name := range []string{bus.StreamOps, bus.StreamEvents} {
		if n := streamInfo(t, env.JS, name).State.Msgs; n != 0 {
			t.Errorf("%d messages in %s", n, name)
		}
	}
}

func TestFollowingWithoutAServerHearsOfWhatComesLater(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	env.Server.Shutdown()
	testenv.Eventually(t, 30*time.Second, func() bool { return !env.JS.Conn().IsConnected() }, "the server to be gone")
	stop, err := env.Bus.Follow(t.Context(), sampleTask, func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := env.Bus.Hint(sampleTask, true); err == nil {
		t.Error("a hint went out without a server")
	}
}

func TestOnlyTasksCanBeFollowed(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	for _, id := range []procfleet.TaskID{"", "procfleet.>", "GSETASK:*:1"} {
		if _, err := env.Bus.Follow(t.Context(), id, func(bool) {}); err == nil {
			t.Errorf("%q is followed", id)
		}
		if err := env.Bus.Hint(id, false); err == nil {
			t.Errorf("%q is hinted at", id)
		}
	}
}

func BenchmarkHintNobodyHears(b *testing.B) {
	env := testenv.StartNATS(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := env.Bus.Hint(sampleTask, true); err != nil {
			b.Fatal(err)
		}
	}
}
