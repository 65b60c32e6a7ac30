package worker_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/telemetry/logging"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/worker"
)

// signing contains a fleet key and the metrics of the workers that use it.
type signing struct {
	t       *testing.T
	ring    *fleetkey.Ring
	metrics *metrics.Registry
}

func newSigning(t *testing.T) *signing {
	t.Helper()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	return &signing{t, testenv.NewRing(t), registry}
}

// worker configures a worker to sign messages and to verify signatures.
func (s *signing) worker(c *worker.Config) {
	c.Keys = func() *fleetkey.Ring { return s.ring }
	c.Meter = s.metrics.Meter("worker")
}

// counted reports whether n messages of the type were rejected for the reason.
func (s *signing) counted(messageType, reason string, n int) bool {
	return s.says(fmt.Sprintf("procfleet_worker_messages_refused_total{reason=%q,type=%q} %d\n", reason, agentproto.ShortType(messageType), n))
}

// says reports whether the metrics page contains a line.
func (s *signing) says(line string) bool { return strings.Contains(s.page(), line) }

// page returns the metrics as text.
func (s *signing) page() string {
	rec := httptest.NewRecorder()
	s.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec.Body.String()
}

// by returns the header with the signature of host h for a message.
func by(ring *fleetkey.Ring, h procfleet.Host, m fleetkey.Message) nats.Header {
	header := nats.Header{}
	ring.Host(h.String()).Sign(header, &m)
	return header
}

// badly returns signatures of a message that do not authenticate the agent of host h, by the
// reason of the rejection.
func (s *signing) badly(h procfleet.Host, m fleetkey.Message) map[string][]nats.Header {
	other, as, to := host(77), m, m
	as.Purpose, to.Answers = agentproto.TypeEvent, "another question"
	headers := map[string][]nats.Header{
		"unsigned": {nil},
		"forged":   {by(testenv.NewRing(s.t), h, m), by(s.ring, other, m), by(s.ring, h, as), by(s.ring, h, to)},
	}
	return headers
}

func (e *env) encode(m agentproto.Message) []byte {
	e.t.Helper()
	data, err := agentproto.Encode(m)
	if err != nil {
		e.t.Fatal(err)
	}
	return data
}

func TestAnUnsignedSettingsRequestGetsNoReply(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, s.worker)
	inbox, err := e.Conn.SubscribeSync(e.Conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	data := e.encode(&agentproto.SettingsRequest{
		Header: agentproto.Header{Type: agentproto.TypeSettingsRequest, ID: "question"}, Host: host(1).String(), Instance: "i1",
	})
	ask := func(header nats.Header) {
		t.Helper()
		msg := &nats.Msg{Subject: agentproto.SettingsSubject(0), Reply: inbox.Subject, Header: header, Data: data}
		if err := e.Conn.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	m := fleetkey.Message{Purpose: agentproto.TypeSettingsRequest, Body: data}
	bad := s.badly(host(1), m)
	for _, headers := range bad {
		for _, header := range headers {
			ask(header)
		}
	}
	for reason, headers := range bad {
		e.eventually(func() bool { return s.counted(agentproto.TypeSettingsRequest, reason, len(headers)) }, "those that are "+reason+" are counted")
	}
	ask(by(s.ring, host(1), m))
	msg, err := inbox.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	answer := fleetkey.Message{Purpose: agentproto.TypeSettingsReply, Answers: "question", Body: msg.Data}
	if err := s.ring.Host(host(1).String()).Verify(msg.Header, &answer); err != nil {
		t.Errorf("the answer: %v", err)
	}
	e.eventually(func() bool { return s.says(`procfleet_worker_settings_questions_total{outcome="answered"} 1` + "\n") }, "one was answered")
	if n, _, err := inbox.Pending(); err != nil || n != 0 {
		t.Errorf("%d more answers (%v)", n, err)
	}
}

// A reply that denies an item ends the item only if the item's agent has signed it.
func TestOnlyTheAgentOfLostItemsMayDenyThem(t *testing.T) {
	t.Parallel()
	// chase makes the agent of an overdue item reply that it does not know the item.
	chase := func(t *testing.T, s *signing, lastCall time.Duration, sign func(m fleetkey.Message) nats.Header) (*env, procfleet.TaskID) {
		t.Helper()
		e := start(t, s.worker, func(c *worker.Config) { c.Timing.Sweep.LastCall, c.Timing.Sweep.ResendWait = lastCall, patience })
		a := e.agent(host(1), accept)
		a.sign = sign
		a.resend = func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Unknown: r.Items} }
		return e, e.overdue(0, chunk(procfleet.ActionStart, host(1)))
	}
	for reason, headers := range newSigning(t).badly(host(1), fleetkey.Message{}) {
		for n := range headers {
			t.Run(fmt.Sprint(reason, n), func(t *testing.T) {
				t.Parallel()
				s := newSigning(t)
				e, id := chase(t, s, time.Millisecond, func(m fleetkey.Message) nats.Header { return s.badly(host(1), m)[reason][n] })
				e.waitState(id, 0, procfleet.StateTimedOut)
				e.eventually(func() bool { return !s.counted(agentproto.TypeResendReply, reason, 0) }, "it is counted")
			})
		}
	}
	t.Run("signed", func(t *testing.T) {
		t.Parallel()
		s := newSigning(t)
		e, id := chase(t, s, time.Hour, func(m fleetkey.Message) nats.Header { return by(s.ring, host(1), m) })
		if r := e.waitState(id, 0, procfleet.StateFailed); !strings.Contains(r.Message, "lost the command") {
			t.Errorf("%+v", r)
		}
	})
}

// TestResultsOfOtherHostsAreRejected sends results without a signature, with that of
// another host, and from another host of the same task.
func TestResultsOfOtherHostsAreRejected(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, s.worker, unswept)
	id := e.store.create(procfleet.LaneSmall, time.Hour, chunk(procfleet.ActionStart, hosts(2)...)).ID
	results := func(from procfleet.Host, text string) []byte {
		all := []agentproto.Result{succeeded(0), succeeded(1)}
		all[0].Message, all[1].Message = text, text
		return e.encode(resultsOf(id, from, all...))
	}
	inbox, err := e.Conn.SubscribeSync(e.Conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	publish := func(header nats.Header, data []byte) {
		t.Helper()
		if err := e.Conn.PublishMsg(&nats.Msg{Subject: agentproto.ResultSubject("s", 0), Reply: inbox.Subject, Header: header, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	forged := results(host(1), "forged")
	bad := s.badly(host(1), fleetkey.Message{Purpose: agentproto.TypeResults, Body: forged})
	for _, headers := range bad {
		for _, header := range headers {
			publish(header, forged)
		}
	}
	for _, h := range []procfleet.Host{host(2), host(1)} { // each speaks for both
		data := results(h, h.String())
		publish(by(s.ring, h, fleetkey.Message{Purpose: agentproto.TypeResults, Body: data}), data)
	}
	for item, h := range hosts(2) {
		if r := e.waitState(id, item, procfleet.StateSucceeded); r.Message != h.String() {
			t.Errorf("item %d of %s: %+v", item, h, r)
		}
	}
	if !s.counted(agentproto.TypeResults, "unsigned", 1) || !s.counted(agentproto.TypeResults, "forged", len(bad["forged"])+2) {
		t.Error("they are not counted")
	}
	for n, h := range []procfleet.Host{host(2), host(1)} { // the forged and unsigned ones before get no reply
		msg, err := inbox.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		var receipt agentproto.Receipt
		if err := agentproto.Decode(msg.Data, agentproto.TypeReceipt, &receipt); err != nil {
			t.Fatal(err)
		}
		if want := 1 - n; !slices.Equal(receipt.Stored, []int{want}) || !slices.Equal(receipt.Rejected, []int{n}) {
			t.Errorf("receipt to %s: %+v", h, receipt)
		}
	}
}

// Invalid and unsigned messages are counted, and do not fill the log.
func TestGarbageIsCountedAndDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	var out bytes.Buffer
	log, err := logging.New(logging.Config{Level: "info", Format: logging.FormatJSON, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, s.worker, func(c *worker.Config) { c.Log = log })
	unsigned := e.encode(&agentproto.Processes{
		Header: agentproto.Header{Type: agentproto.TypeProcesses}, Host: host(1).String(), Instance: "i", Number: 1,
	})
	const each = 10_000
	for range each {
		for _, data := range [][]byte{[]byte("garbage"), unsigned} {
			if err := e.Conn.Publish(agentproto.ProcessesSubject(0), data); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.eventually(func() bool {
		return s.says(fmt.Sprintf("procfleet_worker_process_reports_total{outcome=\"dropped\"} %d\n", 2*each))
	}, "each is counted")
	if !s.counted(agentproto.TypeProcesses, "unsigned", each) {
		t.Error("not all that are unsigned are counted")
	}
	e.stop()
	if lines := strings.Count(out.String(), "\n"); lines > each/10 {
		t.Errorf("%d lines", lines)
	}
}
