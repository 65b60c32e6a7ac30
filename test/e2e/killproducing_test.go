//go:build linux

package e2e

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// killProducing publishes a submission for each point, kills a dispatcher at that
// point, and lets another one process the submissions that remain.
func (f *fleet) killProducing(c *client, points ...string) {
	f.worker("")
	nc, err := nats.Connect(f.broker.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		f.t.Fatal(err)
	}
	answers, err := nc.SubscribeSync("answers.>")
	if err != nil {
		f.t.Fatal(err)
	}
	before := len(c.tasks())
	events := map[string][]proc{}
	var all []proc
	for _, point := range points {
		events[point] = f.procs.grid(f.hosts(killHosts()), 2, "event"+word(point))
		all = append(all, events[point]...)
		f.publishEvent(js, point, events[point])
		// The dispatcher dies at its first submission, so do not wait for its
		// readiness.
		dying := testenv.StartChild(f.t, crashAt(point), f.programs.procfleet,
			"dispatcher", "--http", testenv.FreeAddress(f.t),
			"--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL())
		if code := dying.Wait(f.t, finishTimeout); code != -1 {
			f.t.Fatalf("exit code of the dispatcher that should have died at %s: %d", point, code)
		}
	}
	f.dispatcher("")

	tasks := map[string]string{}
	for len(tasks) < len(points) {
		msg, err := answers.NextMsg(finishTimeout)
		if err != nil {
			f.t.Fatalf("replies for %v only: %v", tasks, err)
		}
		point, id := msg.Header.Get("Procfleet-Request-Id"), taskID(f.t, msg.Data)
		if known, again := tasks[point]; again && known != id || msg.Header.Get("Procfleet-Task") != id || msg.Header.Get("Procfleet-Status") != "201" {
			f.t.Fatalf("the reply for %s is %v %s, the first reply was %s", point, msg.Header, msg.Data, known)
		}
		tasks[point] = id
	}
	for point, id := range tasks {
		c.wait(id)
		f.verifyStarted(c, id, events[point])
	}
	testenv.Eventually(f.t, finishTimeout, func() bool { return messages(f.t, js, "PROCFLEET_SUBMIT") == 0 }, "every submission is acknowledged")
	if n := len(c.tasks()) - before; n != len(points) {
		f.t.Errorf("%d tasks of %d submissions", n, len(points))
	}
	if n := messages(f.t, js, "PROCFLEET_SUBMIT_FAILED"); n != 0 {
		f.t.Errorf("%d submissions failed", n)
	}
	f.killAll(c, all)
}

// publishEvent publishes the start of processes, without an idempotency key.
func (f *fleet) publishEvent(js jetstream.JetStream, id string, all []proc) {
	f.t.Helper()
	body, err := json.Marshal(operation("start", all))
	if err != nil {
		f.t.Fatal(err)
	}
	msg := &nats.Msg{Subject: "procfleet.submit", Data: body, Header: nats.Header{}}
	msg.Header.Set("Procfleet-Reply-To", "answers."+id)
	msg.Header.Set("Procfleet-Request-Id", id)
	if _, err := js.PublishMsg(f.t.Context(), msg); err != nil {
		f.t.Fatalf("publish: %v", err)
	}
}

func messages(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatalf("read %s: %v", stream, err)
	}
	return s.CachedInfo().State.Msgs
}
