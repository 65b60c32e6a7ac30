package agent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

// reports returns a channel of the agent's reports on its processes.
func (h *host) reports() chan agentproto.Processes {
	h.t.Helper()
	heard := make(chan agentproto.Processes, 1000)
	sub, err := h.conn.Subscribe(agentproto.ProcessesAll, func(m *nats.Msg) {
		var r agentproto.Processes
		if err := agentproto.Decode(m.Data, agentproto.TypeProcesses, &r); err != nil || m.Subject != agentproto.ProcessesSubject(0) {
			h.t.Errorf("report on %s: %v", m.Subject, err)
		}
		heard <- r
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := h.conn.Flush(); err != nil {
		h.t.Fatal(err)
	}
	return heard
}

func nextReport(t *testing.T, heard <-chan agentproto.Processes) agentproto.Processes {
	t.Helper()
	select {
	case r := <-heard:
		return r
	case <-time.After(patience):
		t.Fatal("no report came")
		return agentproto.Processes{}
	}
}

func managed(key string) agentproto.ManagedProcess {
	return agentproto.ManagedProcess{Key: key, ProcName: "demo", Desired: agentproto.DesiredUp}
}

func TestNoReportBeforeTheServersTimeIsKnown(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.AgentID, h.cfg.PresenceInterval, h.cfg.ReportInterval = "agent-7", 50*time.Millisecond, 50*time.Millisecond
	heard := h.reports()
	h.timed = true
	h.start(nil)
	h.engine.manages(managed("a"))
	before := time.Now()
	h.answerPresence(time.Hour, func(agentproto.Presence) {})
	last := int64(0)
	for range 3 {
		r := nextReport(t, heard)
		if at := time.UnixMicro(r.Number); at.Before(before.Add(59*time.Minute)) || at.After(time.Now().Add(61*time.Minute)) || r.Number <= last {
			t.Errorf("number %d is %v after %d, and not the server's time", r.Number, at, last)
		}
		if r.Host != "0:10.0.0.1" || r.AgentID != "agent-7" || r.Instance == "" || len(r.Processes) != 1 || r.Processes[0].Key != "a" {
			t.Errorf("report is %+v", r)
		}
		last = r.Number
	}
}

func TestBurstOfChangesIsOneReport(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.ReportInterval = time.Hour
	heard := h.reports()
	h.answerPresence(0, func(agentproto.Presence) {})
	h.start(nil)
	first := nextReport(t, heard) // the agent began
	const changes = 100
	for i := range changes {
		h.engine.manages(managed(fmt.Sprint(i)))
	}
	for n, last := 1, first; ; n++ {
		r := nextReport(t, heard)
		if r.Number <= last.Number {
			t.Errorf("number %d after %d", r.Number, last.Number)
		}
		if last = r; len(r.Processes) == 1 && r.Processes[0].Key == fmt.Sprint(changes-1) {
			if n > changes/10 {
				t.Errorf("%d changes took %d reports", changes, n)
			}
			return
		}
	}
}

func TestReportIsNoLargerThanAMessage(t *testing.T) {
	t.Parallel()
	h, n := newHost(t)
	h.cfg.ReportInterval = time.Hour
	var log bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&log)
	h.cfg.Log = logger
	heard := h.reports()
	h.answerPresence(0, func(agentproto.Presence) {})
	h.start(nil)
	nextReport(t, heard)
	many := make([]agentproto.ManagedProcess, 5000)
	for i := range many {
		many[i] = managed(fmt.Sprintf("%04d/%s", i, strings.Repeat("\n", i%500)))
	}
	for range 2 {
		h.engine.manages(many...)
		r := nextReport(t, heard)
		got := len(r.Processes)
		if got < 100 || got+r.Omitted != len(many) || r.Processes[got-1].Key != many[got-1].Key {
			t.Fatalf("%d processes are reported and %d left out, of %d", got, r.Omitted, len(many))
		}
		if data, err := agentproto.Encode(&r); err != nil || len(data) > int(n.Conn.MaxPayload()) {
			t.Errorf("the report has %d bytes, %v", len(data), err)
		}
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	if said := strings.Count(log.String(), "process report truncated"); said != 1 {
		t.Errorf("said %d times that processes are left out", said)
	}
}
