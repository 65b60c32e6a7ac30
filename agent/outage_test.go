package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestResultsOfAnOutageArriveOnceAfterIt(t *testing.T) {
	t.Parallel()
	broker := natsembed.Config{
		StoreDir: t.TempDir(), Listen: fmt.Sprint("127.0.0.1:", testenv.FreePort(t)), MaxStore: 1 << 30, Log: testenv.Silent(),
	}
	server, err := natsembed.Start(broker)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Shutdown() }()
	conn := testenv.Connect(t, server.ClientURL())
	h := &host{t: t, conn: conn, inbox: newInbox(t, conn), cfg: Config{
		Conn: testenv.Connect(t, server.ClientURL()), Addr: address, DataDir: t.TempDir(), Log: testenv.Log(t),
	}}
	announced := make(chan struct{}, 100)
	h.answerPresence(0, func(agentproto.Presence) { announced <- struct{}{} })
	hold := make(chan struct{})
	h.start(hold)
	h.command(h.starts("task", 0, 1, 2))
	h.engine.waitFor(t, 3)
	for len(announced) > 0 {
		<-announced
	}

	server.Shutdown()
	testenv.Eventually(t, patience, func() bool { return !h.cfg.Conn.IsConnected() }, "connection is lost")
	close(hold)
	h.engine.running.Wait() // the operations end while the broker is away
	if server, err = natsembed.Start(broker); err != nil {
		t.Fatal(err)
	}
	h.waitReachable()
	select {
	case <-announced: // long before the interval is over
	case <-time.After(patience):
		t.Error("the agent did not announce itself on the new connection")
	}
	for id, times := range h.inbox.collect(3) {
		if times != 1 {
			t.Errorf("%v came %d times", id, times)
		}
	}
	if r := h.command(h.starts("task", 0, 1, 2)); len(r.Items) != 3 || r.Items[0].Result == nil {
		t.Errorf("reply %+v", r)
	}
}

func TestConnectionClosedForGoodEndsTheAgent(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	a, err := New(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	h.waitReachable()
	h.cfg.Conn.Close()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "connection closed") {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the agent goes on without a connection")
	}
}

func TestRealEngineAnswersStatus(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	a, err := New(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.tellTime()
	runAgent(t, a)
	h.waitReachable()
	c := h.starts("task", 0, 1)
	c.Items[0].Action = agentproto.ActionStatus
	c.Items[1].Action = "juggle"
	h.command(c)
	in, codes := h.inbox, map[int]int{}
	for len(codes) < 2 {
		for _, r := range in.next().Results.Results {
			codes[r.Item] = r.Code
		}
	}
	if codes[1] != agentproto.CodeUnknownAction {
		t.Errorf("codes by item: %v", codes)
	}
}
