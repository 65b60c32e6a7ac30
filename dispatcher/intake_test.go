package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/natsintake"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// producer publishes submissions to dispatchers that it starts itself and shares with no other
// test.
type producer struct {
	*testenv.NATS
	t       *testing.T
	replies *nats.Subscription
}

// produce starts a broker and, for each of the stores, a dispatcher that
// receives submissions.
func produce(t *testing.T, cfg Config, stores ...Store) *producer {
	t.Helper()
	p := &producer{NATS: testenv.StartNATS(t), t: t}
	var err error
	if p.replies, err = p.Conn.SubscribeSync("answers.>"); err != nil {
		t.Fatal(err)
	}
	for _, store := range stores {
		p.dispatcher(cfg, store)
	}
	return p
}

// dispatcher starts the intake of a dispatcher, on cfg.Submissions or, if it is nil, on the
// producer's broker. stop ends it.
func (p *producer) dispatcher(cfg Config, store Store) (stop func()) {
	p.t.Helper()
	return p.run(p.intake(cfg, store))
}

func (p *producer) intake(cfg Config, store Store) *intake {
	p.t.Helper()
	cfg.Log = testenv.Log(p.t)
	if cfg.Submissions == nil {
		cfg.Submissions = p.Bus
	}
	d, err := New(cfg, store, cfg.Submissions)
	if err != nil {
		p.t.Fatal(err)
	}
	d.intake.redeliveryDelay = 5 * time.Millisecond
	return d.intake
}

func (p *producer) run(in *intake) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	over := make(chan struct{})
	go func() { defer close(over); in.Run(ctx, in.handle) }()
	stop = func() { cancel(); <-over }
	p.t.Cleanup(stop)
	return stop
}

// mortal starts a dispatcher with a connection of its own. kill closes the connection, so that
// nothing that the dispatcher does afterwards reaches the broker.
func (p *producer) mortal(cfg Config, store Store) (kill, stop func()) {
	p.t.Helper()
	conn := testenv.Connect(p.t, p.URL)
	js, err := bus.JetStream(conn)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.Submissions = bus.New(js)
	return conn.Close, p.dispatcher(cfg, store)
}

// comesAgainAfter sets the time after which the broker redelivers a message without an
// acknowledgement or a progress report.
func (p *producer) comesAgainAfter(wait time.Duration) {
	p.t.Helper()
	if err := bus.Ensure(p.t.Context(), p.JS, bus.Options{AckWait: wait}); err != nil {
		p.t.Fatal(err)
	}
}

// publish sends a submission; header has names and values in turns.
func (p *producer) publish(body string, header ...string) {
	p.t.Helper()
	msg := &nats.Msg{Subject: "procfleet.submit", Data: []byte(body), Header: nats.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		msg.Header[header[i]] = append(msg.Header[header[i]], header[i+1])
	}
	if _, err := p.JS.PublishMsg(p.t.Context(), msg); err != nil {
		p.t.Fatal(err)
	}
}

func (p *producer) reply() *nats.Msg {
	p.t.Helper()
	msg, err := p.replies.NextMsg(patience)
	if err != nil {
		p.t.Fatalf("no reply: %v", err)
	}
	return msg
}

// ask publishes a submission and returns the reply to it.
func (p *producer) ask(body string, header ...string) *nats.Msg {
	p.t.Helper()
	p.publish(body, append(header, "Procfleet-Reply-To", "answers.mine")...)
	return p.reply()
}

// waiting is how many messages the stream of submissions holds.
func (p *producer) waiting() uint64 { return p.messages(bus.StreamSubmit) }

func (p *producer) messages(stream string) uint64 {
	p.t.Helper()
	s, err := p.JS.Stream(p.t.Context(), stream)
	if err != nil {
		p.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// failed waits for the n-th failed submission.
func (p *producer) failed(n uint64) *jetstream.RawStreamMsg {
	p.t.Helper()
	var msg *jetstream.RawStreamMsg
	testenv.Eventually(p.t, patience, func() bool {
		stream, err := p.JS.Stream(p.t.Context(), bus.StreamSubmitFailed)
		if err != nil {
			return false
		}
		msg, err = stream.GetMsg(p.t.Context(), n)
		return err == nil
	}, fmt.Sprintf("failed submission %d", n))
	return msg
}

func (p *producer) drained() {
	p.t.Helper()
	testenv.Eventually(p.t, patience, func() bool { return p.waiting() == 0 }, "every submission is acknowledged")
}

func taskCount(t *testing.T, store taskstore.Queries) int {
	t.Helper()
	tasks, err := store.Tasks(t.Context(), taskstore.TaskQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// callBodies are valid bodies by the name of the accepting call.
var callBodies = map[string]string{
	"gse.operate_proc_multi": `{"bk_app_code":"shop","proc_operate_req":[` + gseBody(2, "10.0.0.1", "10.0.0.2") + `]}`,
	"gse.operate_proc":       gseBody(2, "10.0.0.1"),
	"gse.operate_proc_v2":    gseBody(2, "10.0.0.1"),
	"job.operate_process":    jobBody("10.0.0.1"),
	"job.operate_proc":       jobBody("10.0.0.1"),
	"job.manage_proc":        strings.Replace(jobBody("10.0.0.1"), `"proc_name"`, `"proc_owner":"ops","proc_name"`, 1),
	"oldjob.operate_process": oldJobBody(jobBody("10.0.0.1")),
	"oldjob.operate_proc":    oldJobBody(jobBody("10.0.0.1")),
	"oldjob.manage_proc":     oldJobBody(strings.Replace(jobBody("10.0.0.1"), `"proc_name"`, `"proc_owner":"ops","proc_name"`, 1)),
	"native":                 nativeBody("0:10.0.0.1"),
}

// sameOutcome removes the parts of a response in which two acceptances of one body may differ.
func sameOutcome(t *testing.T, body []byte, id string) string {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	delete(fields, "request_id")
	delete(fields, "job_request_id")
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), id, "ID")
}

func TestAnEventAndARequestMakeEqualTasks(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store)
	d := startServer(t, testConfig(t), store, p.Bus)
	type view struct {
		Task   procfleet.Task
		Chunks [][]procfleet.ItemResult
	}
	look := func(id string) view {
		task, err := store.Task(t.Context(), procfleet.TaskID(id))
		if err != nil {
			t.Fatalf("task %q: %v", id, err)
		}
		v := view{Task: task}
		for i := range task.Chunks {
			items, err := store.Chunk(t.Context(), task.ID, i)
			if err != nil {
				t.Fatal(err)
			}
			v.Chunks = append(v.Chunks, items)
		}
		v.Task.Deadline = v.Task.Deadline.Add(-time.Duration(v.Task.CreatedAt.UnixNano()))
		v.Task.ExpiresAt = v.Task.ExpiresAt.Add(-time.Duration(v.Task.CreatedAt.UnixNano()))
		v.Task.ID, v.Task.Number, v.Task.CreatedAt = "", 0, time.Time{}
		v.Task.Origin = procfleet.Origin{User: v.Task.Origin.User} // origins differ by transport
		return v
	}
	for _, shape := range dialect.All() {
		for _, call := range shape.Calls {
			if _, ok := call.Endpoint.(dialect.Accept); !ok {
				continue
			}
			body, ok := callBodies[call.Name]
			if !ok {
				t.Errorf("no body for %s", call.Name)
				continue
			}
			path := strings.ReplaceAll(call.Paths[0], "{$}", "")
			credentials := []string{"X-Bkapi-Authorization", `{"bk_app_code":"till"}`}
			request := d.call(http.MethodPost, path, body, credentials...)
			event := p.ask(body, append(credentials, "Procfleet-Dialect", call.Name)...)
			eventID := event.Header.Get("Procfleet-Task")
			newest, err := store.Tasks(t.Context(), taskstore.TaskQuery{Limit: 2})
			if err != nil || len(newest) != 2 || string(newest[0].ID) != eventID {
				t.Fatalf("%s: tasks %v, %v; the reply names %q: %s", call.Name, newest, err, eventID, event.Data)
			}
			requestID := string(newest[1].ID)
			if diff := cmp.Diff(look(requestID), look(eventID), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("%s: task of the request (-) and of the event (+):\n%s", call.Name, diff)
			}
			if newest[0].Application != "till" {
				t.Errorf("%s: the application is %q", call.Name, newest[0].Application)
			}
			if got, want := event.Header.Get("Procfleet-Status"), fmt.Sprint(request.status); got != want {
				t.Errorf("%s: status %s, want %s", call.Name, got, want)
			}
			if got, want := sameOutcome(t, event.Data, eventID), sameOutcome(t, []byte(request.text), requestID); got != want {
				t.Errorf("%s: reply %s, want %s", call.Name, got, want)
			}
		}
	}
	p.drained()
}

func TestOneKeyIsOneTaskThroughBothDoors(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store)
	d := startServer(t, testConfig(t), store, p.Bus)
	body := nativeBody("0:10.0.0.1")
	byHTTP := d.call(http.MethodPost, nativePath, body, "Idempotency-Key", "k")
	if got := p.ask(" "+body, "idempotency-key", "k").Header.Get("Procfleet-Task"); got != byHTTP.body["id"] {
		t.Errorf("the event made task %q, the request %q", got, byHTTP.body["id"])
	}
	first := p.ask(body, "Idempotency-Key", "other").Header.Get("Procfleet-Task")
	if again := d.call(http.MethodPost, nativePath, body, "Idempotency-Key", "other"); again.body["id"] != first {
		t.Errorf("the request made task %q, the event %q", again.body["id"], first)
	}
	if n := taskCount(t, store); n != 2 {
		t.Errorf("%d tasks, want 2", n)
	}
	for range 2 { // without a key, each message is one operation
		p.ask(body)
	}
	if n := taskCount(t, store); n != 4 {
		t.Errorf("%d tasks, want 4", n)
	}
}

func TestWhatCannotBeAcceptedIsKeptWithTheReason(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Body, cfg.Limits.Items = 10_000, 2
	store := openStore(t)
	p := produce(t, cfg, store)
	good := nativeBody("0:10.0.0.1")
	p.ask(good, "Idempotency-Key", "used")
	many := strings.Replace(good, `["0:10.0.0.1"]`, `["0:10.0.0.1","0:10.0.0.2","0:10.0.0.3"]`, 1)
	n := uint64(0)
	for _, c := range []struct {
		name, body   string
		header       []string
		code, reason string
		status       string
	}{
		{"not JSON", `{`, nil, "invalid_request", "unexpected end", "400"},
		{"nothing", ``, nil, "invalid_request", "not a JSON object", "400"},
		{"invalid", strings.Replace(good, "status", "dance", 1), nil, "invalid_request", "action", "400"},
		{"unknown dialect", good, []string{"Procfleet-Dialect", "morse"}, "invalid_request", "gse.operate_proc_multi, gse.operate_proc_v2", "400"},
		{"a call that only asks", good, []string{"Procfleet-Dialect", "native.tasks"}, "invalid_request", "native.tasks", "400"},
		{"another dialect's body", good, []string{"Procfleet-Dialect", "gse.operate_proc_v2"}, "invalid_request", "hosts", "200"},
		{"credentials", good, []string{"X-Bkapi-Authorization", "{"}, "invalid_request", "X-Bkapi-Authorization", "400"},
		{"too many, and a conflict", many[:len(many)-1] + `,"business":"2"}`, []string{"Idempotency-Key", "used"}, "too_large", "3 processes", "413"},
		{"conflict", strings.Replace(good, "0.1", "0.2", 1), []string{"Idempotency-Key", "used"}, "conflict", "another request", "409"},
		{"too many", many, nil, "too_large", "divide", "413"},
		{"too large", good + strings.Repeat(" ", 10_000), nil, "too_large", "10000 bytes", "413"},
		{"expired", good, []string{"Procfleet-Not-After", "2001-01-01T00:00:00Z"}, "expired", "Procfleet-Not-After", "410"},
		{"no time", good, []string{"Procfleet-Not-After", "tomorrow"}, "invalid_request", "tomorrow", "400"},
		{"long key", good, []string{"Idempotency-Key", strings.Repeat("k", 256)}, "invalid_request", "255", "400"},
		{"a key of ours", good, []string{"Idempotency-Key", "\x00submission/1.1"}, "invalid_request", "control character", "400"},
	} {
		n++
		reply := p.ask(c.body, append(c.header, "Procfleet-Request-Id", "mine", "Nats-Msg-Id", fmt.Sprint("m", n), "X-Own", "kept")...)
		failed := p.failed(n)
		switch {
		case failed.Header.Get("Procfleet-Error-Code") != c.code || !strings.Contains(failed.Header.Get("Procfleet-Error"), c.reason):
			t.Errorf("%s: kept as %v, want code %s and a reason with %q", c.name, failed.Header, c.code, c.reason)
		case string(failed.Data) != c.body || failed.Header.Get("X-Own") != "kept" || failed.Header.Get("Procfleet-Msg-Id") != fmt.Sprint("m", n) ||
			failed.Header.Get("Procfleet-Sequence") != fmt.Sprint(n+1):
			t.Errorf("%s: kept as %v %.100s", c.name, failed.Header, failed.Data)
		case reply.Header.Get("Procfleet-Status") != c.status || reply.Header.Get("Procfleet-Task") != "" ||
			reply.Header.Get("Procfleet-Request-Id") != "mine" || reply.Header.Get("Nats-Msg-Id") != fmt.Sprint("m", n):
			t.Errorf("%s: replied %v %s", c.name, reply.Header, reply.Data)
		case !json.Valid(reply.Data):
			t.Errorf("%s: replied %s", c.name, reply.Data)
		}
	}
	p.drained()
	if n := taskCount(t, store); n != 1 {
		t.Errorf("%d tasks, want only the first", n)
	}
}

// tune sets limits of the stream of failed messages, as an operator would.
func (p *producer) tune(set func(*jetstream.StreamConfig)) {
	p.t.Helper()
	stream, err := p.JS.Stream(p.t.Context(), bus.StreamSubmitFailed)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	set(&cfg)
	if _, err := p.JS.UpdateStream(p.t.Context(), cfg); err != nil {
		p.t.Fatal(err)
	}
}

func TestAFailedMessageThatIsTooBigToKeepIsKeptCut(t *testing.T) {
	t.Parallel()
	const own = "X-Own"
	full := int(testenv.StartNATS(t).Conn.MaxPayload()) - 17<<10 // the maximum message size, less some headers
	for _, c := range []struct {
		name          string
		body, headers int
		tune          func(*jetstream.StreamConfig)
		cutBody       bool
		cutHeaders    string
	}{
		{name: "a body as big as may be", body: full},
		{name: "headers as big as may be", body: 100, headers: 65_400, cutHeaders: "cut"},
		{name: "both", body: full - 65_400, headers: 65_400, cutHeaders: "cut"},
		{
			name: "more than the stream's messages may have", body: 20_000, headers: 20_000, cutBody: true, cutHeaders: "cut",
			tune: func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 10_000 },
		},
		{
			name: "more than the whole stream", body: full, cutBody: true,
			tune: func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = 64 << 10 },
		},
		{
			name: "hardly room for the reason", body: full - 5000, headers: 5000, cutBody: true, cutHeaders: "cut",
			tune: func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := produce(t, testConfig(t), openStore(t))
			if c.tune != nil {
				p.tune(c.tune)
			}
			body := "not JSON" + strings.Repeat(" ", c.body-len("not JSON"))
			p.publish(body, "Nats-Msg-Id", "mine", own, "kept", "X-Big", strings.Repeat("b", c.headers))
			failed := p.failed(1)
			if failed.Header.Get("Procfleet-Error-Code") != "invalid_request" || failed.Header.Get("Procfleet-Error") == "" ||
				failed.Header.Get("Procfleet-Msg-Id") != "mine" || failed.Header.Get(own) != "kept" {
				t.Errorf("kept as %.300v", failed.Header)
			}
			if got := failed.Header.Get("Procfleet-Headers"); got != c.cutHeaders {
				t.Errorf("headers are said to be %q, want %q", got, c.cutHeaders)
			}
			said := ""
			if c.cutBody {
				said = fmt.Sprintf("cut from %d bytes", c.body)
			}
			if got := failed.Header.Get("Procfleet-Body"); got != said || !strings.HasPrefix(body, string(failed.Data)) || c.cutBody != (len(failed.Data) < len(body)) {
				t.Errorf("%d bytes of %d are kept, and said to be %q, want %q", len(failed.Data), len(body), got, said)
			}
			p.drained()
		})
	}
}

func TestTheDepthOfTheSubmissionsIsMeasured(t *testing.T) {
	t.Parallel()
	store := &absent{Store: openStore(t)}
	cfg := testConfig(t)
	cfg.Timeouts.Hold = time.Nanosecond // put off ones wait as well
	reader := sdkmetric.NewManualReader()
	cfg.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("dispatcher")
	p := produce(t, cfg)
	in := p.intake(cfg, store)
	p.run(in)
	for range 3 {
		p.publish(nativeBody("0:10.0.0.1"))
	}
	p.publish("not JSON")
	p.failed(1)
	testenv.Eventually(t, patience, func() bool {
		in.MeasureDepth(t.Context())
		return gauge(t, reader, "procfleet_dispatcher_submit_waiting_messages") == 3 && gauge(t, reader, "procfleet_dispatcher_submit_failed_messages") == 1
	}, "three submissions wait and one failed")
}

func gauge(t *testing.T, reader *sdkmetric.ManualReader, name string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if points, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == name && len(points.DataPoints) == 1 {
				return points.DataPoints[0].Value
			}
		}
	}
	return -1
}

func TestAFailedMessageIsKeptCutWhenTheServerTakesOnlySmallerOnesNow(t *testing.T) {
	t.Parallel()
	program := testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2")
	config, store, port := t.TempDir()+"/nats.conf", t.TempDir(), testenv.FreePort(t)
	serve := func(maxPayload int) *testenv.Child {
		text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\nmax_payload: %d\njetstream { store_dir: %q }\n", port, maxPayload, store)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return testenv.StartChild(t, nil, program, "-c", config)
	}
	server := serve(1 << 20)
	p := &producer{NATS: &testenv.NATS{URL: fmt.Sprintf("nats://127.0.0.1:%d", port)}, t: t}
	p.Conn = testenv.Connect(t, p.URL)
	var err error
	if p.JS, err = bus.JetStream(p.Conn); err != nil {
		t.Fatal(err)
	}
	p.Bus = bus.New(p.JS)
	testenv.Eventually(t, patience, func() bool { return bus.Ensure(t.Context(), p.JS, bus.Options{}) == nil }, "the streams are there")
	p.publish(strings.Repeat("x", 900_000), "X-Own", "kept")
	server.Kill()
	serve(64 << 10)
	p.dispatcher(testConfig(t), openStore(t))
	failed := p.failed(1)
	if got := failed.Header.Get("Procfleet-Body"); got != "cut from 900000 bytes" || failed.Header.Get("X-Own") != "kept" || len(failed.Data) < 60_000 {
		t.Errorf("%d bytes are kept as %v", len(failed.Data), failed.Header)
	}
	testenv.Eventually(t, patience, func() bool { return p.waiting() == 0 }, "the message is acknowledged")
}

func TestOldFailedMessagesGiveWayToNewOnes(t *testing.T) {
	t.Parallel()
	p := produce(t, testConfig(t), openStore(t))
	p.tune(func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = 64 << 10 })
	const published = 50
	for n := range published {
		p.publish(fmt.Sprint("not JSON ", n, strings.Repeat(" ", 5000)))
	}
	p.drained()
	stream, err := p.JS.Stream(t.Context(), bus.StreamSubmitFailed)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	if state.LastSeq != published || state.Msgs < 8 || state.Msgs > 12 {
		t.Errorf("%d were kept, %d still are; want %d and some 11", state.LastSeq, state.Msgs, published)
	}
}

func TestABrokenBodyFailsInTheWordsOfItsDialect(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store)
	n := uint64(0)
	for call, good := range callBodies {
		for _, body := range []string{good[:len(good)-1], "[" + good + "]", good + "{}", "\xff" + good, "null"} {
			n++
			reply := p.ask(body, "Procfleet-Dialect", call)
			failed := p.failed(n)
			if failed.Header.Get("Procfleet-Error-Code") != "invalid_request" || string(failed.Data) != body || !json.Valid(reply.Data) || reply.Header.Get("Procfleet-Task") != "" {
				t.Errorf("%s %.40q: kept as %v, replied %v %s", call, body, failed.Header, reply.Header, reply.Data)
			}
		}
	}
	p.drained()
	if n := taskCount(t, store); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
}

func TestAFailedMessageIsKeptOnceIfTheDispatcherDiesBeforeItIsAcknowledged(t *testing.T) {
	t.Parallel()
	p := produce(t, testConfig(t))
	var broke atomic.Int32
	cfg := testConfig(t)
	cfg.Reached = func(point string) {
		if point == PointFailed && broke.Add(1) <= 3 {
			panic("kept, and not acknowledged")
		}
	}
	p.dispatcher(cfg, openStore(t))
	p.publish("not JSON")
	p.drained()
	if n := p.messages(bus.StreamSubmitFailed); n != 1 || broke.Load() != 4 {
		t.Errorf("kept %d times in %d deliveries, want once in 4", n, broke.Load())
	}
}

func TestAnOperationThatIsPublishedAgainIsOneTask(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store, store)
	for range 5 { // the stream drops them
		p.publish(nativeBody("0:10.0.0.1"), "Nats-Msg-Id", "mine", "Procfleet-Reply-To", "answers.mine")
	}
	first := p.reply().Header.Get("Procfleet-Task")
	for range 5 { // the task store knows them
		p.publish(nativeBody("0:10.0.0.2"), "Idempotency-Key", "mine", "Procfleet-Reply-To", "answers.mine")
	}
	second := p.reply().Header.Get("Procfleet-Task")
	for range 4 {
		if again := p.reply().Header.Get("Procfleet-Task"); again != second || again == first {
			t.Errorf("the answers name %s and %s, before them was %s", second, again, first)
		}
	}
	p.drained()
	if n := taskCount(t, store); n != 2 {
		t.Errorf("%d tasks, want 2", n)
	}
}

func TestAMessageWhoseProducerHasGoneIsAccepted(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store)
	p.publish(nativeBody("0:10.0.0.1"), "Procfleet-Reply-To", "_INBOX.gone.1")
	p.drained()
	onlyTask(t, store, procfleet.TaskAccepted)
}

func TestRepliesReachNothingOfOurs(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t), store)
	everything, err := p.Conn.SubscribeSync("procfleet.agent.>")
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{
		"procfleet.agent.0.10-0-0-1", "procfleet.submit", "procfleet", "PROCFLEET.agent.0.x", "procfleet.>",
		"$JS.API.STREAM.DELETE.PROCFLEET_OPS", "$SYS.REQ", "a.*", ">", "a b", "a\tb", "a..b", ".a", "a.", strings.Repeat("a", 256), "a\x00b",
	}
	for n, subject := range bad {
		p.publish(nativeBody("0:10.0.0.1"), "Procfleet-Reply-To", subject)
		failed := p.failed(uint64(n) + 1)
		if !strings.Contains(failed.Header.Get("Procfleet-Error"), "Procfleet-Reply-To") {
			t.Errorf("%.40q: %s", subject, failed.Header.Get("Procfleet-Error"))
		}
	}
	p.drained()
	if err := p.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := everything.Pending(); n != 0 || taskCount(t, store) != 0 {
		t.Errorf("%d messages to agents, %d tasks", n, taskCount(t, store))
	}
}

// panicky is a store that panics for the tasks of one application.
type panicky struct {
	Store
	tries atomic.Int32
}

func (s *panicky) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if d.Application == "poison" {
		s.tries.Add(1)
		panic("this one kills")
	}
	return s.Store.Create(ctx, d)
}

func TestAPoisonedMessageIsIsolatedAndTheOthersAreNot(t *testing.T) {
	t.Parallel()
	store := &panicky{Store: openStore(t)}
	p := produce(t, testConfig(t), store)
	p.publish(nativeBody("0:10.0.0.1"), "Authorization", "Bearer poison.x", "Procfleet-Reply-To", "answers.poison")
	for range 20 {
		p.publish(nativeBody("0:10.0.0.1"))
	}
	failed := p.failed(1)
	if got := failed.Header.Get("Procfleet-Error-Code"); got != "poisoned" {
		t.Errorf("kept as %v", failed.Header)
	}
	if reply := p.reply(); reply.Header.Get("Procfleet-Status") != "500" {
		t.Errorf("replied %v %s", reply.Header, reply.Data)
	}
	p.drained()
	if n := store.tries.Load(); n != natsintake.MaxDeliveries {
		t.Errorf("tried %d times, want %d", n, natsintake.MaxDeliveries)
	}
	if n := taskCount(t, store); n != 20 {
		t.Errorf("%d tasks, want 20", n)
	}
	if n := p.messages(bus.StreamSubmitFailed); n != 1 {
		t.Errorf("%d failed, want 1", n)
	}
}

// absent is a store whose Create fails until there is set.
type absent struct {
	Store
	fails error // ErrUnavailable if nil
	// clockless means that Now fails, too.
	clockless bool
	there     atomic.Bool
	asked     atomic.Int32
}

func (s *absent) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if !s.there.Load() {
		s.asked.Add(1)
		return procfleet.Task{}, false, s.failure()
	}
	return s.Store.Create(ctx, d)
}

func (s *absent) Now(ctx context.Context) (time.Time, error) {
	if s.clockless && !s.there.Load() {
		return time.Time{}, s.failure()
	}
	return s.Store.Now(ctx)
}

func (s *absent) failure() error {
	if s.fails != nil {
		return s.fails
	}
	return taskstore.ErrUnavailable
}

// absences returns stores that are unavailable in different ways.
func absences(t *testing.T) map[string]*absent {
	t.Helper()
	return map[string]*absent{
		"takes no writes": {Store: openStore(t)},
		"answers nothing": {Store: openStore(t), clockless: true},
		"answers with an error that nobody foresaw": {Store: openStore(t), clockless: true, fails: errors.New("WRONGPASS")},
	}
}

func TestDispatchersKilledWhileTheStoreIsAwayPoisonNothing(t *testing.T) {
	t.Parallel()
	for name, store := range absences(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := produce(t, testConfig(t))
			p.comesAgainAfter(200 * time.Millisecond)
			cfg := testConfig(t)
			cfg.Timeouts.Hold = time.Hour
			p.publish(nativeBody("0:10.0.0.1"))
			for range natsintake.MaxDeliveries + 1 {
				before := store.asked.Load()
				kill, stop := p.mortal(cfg, store)
				testenv.Eventually(t, patience, func() bool { return store.asked.Load() >= before+2 }, "the store was asked again")
				kill()
				stop()
			}
			store.there.Store(true)
			p.dispatcher(cfg, store)
			p.drained()
			if n := taskCount(t, store); n != 1 || p.messages(bus.StreamSubmitFailed) != 0 {
				t.Errorf("%d tasks, %d failed; want 1 and 0", n, p.messages(bus.StreamSubmitFailed))
			}
		})
	}
}

// deadly is a store that blocks every Create until over is closed.
type deadly struct {
	Store
	asked atomic.Int32
	over  chan struct{}
}

func (s *deadly) Create(context.Context, taskstore.Draft) (procfleet.Task, bool, error) {
	s.asked.Add(1)
	<-s.over
	return procfleet.Task{}, false, errors.New("too late")
}

func TestAMessageThatKillsDispatchersIsIsolated(t *testing.T) {
	t.Parallel()
	store := &deadly{Store: openStore(t), over: make(chan struct{})}
	defer close(store.over)
	p := produce(t, testConfig(t))
	p.comesAgainAfter(200 * time.Millisecond)
	p.publish(nativeBody("0:10.0.0.1"))
	for n := range int32(natsintake.MaxDeliveries) {
		kill, _ := p.mortal(testConfig(t), store)
		// On a busy machine a dispatcher may receive the message twice before it is killed.
		tried := func() bool { return store.asked.Load() > n || p.messages(bus.StreamSubmitFailed) == 1 }
		testenv.Eventually(t, patience, tried, "the message was tried")
		kill()
	}
	p.dispatcher(testConfig(t), store.Store)
	if got := p.failed(1).Header.Get("Procfleet-Error-Code"); got != "poisoned" {
		t.Errorf("kept as %q", got)
	}
}

// A message that was postponed any number of times is not considered poisoned.
func TestNothingIsLostWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]time.Duration{"held": time.Hour, "put off": time.Nanosecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.Timeouts.Hold = hold
			store := &absent{Store: openStore(t)}
			p := produce(t, cfg, store)
			for range 10 {
				p.publish(nativeBody("0:10.0.0.1"))
			}
			enough := int32(8)
			if hold < time.Second {
				enough = 10 * 2 * natsintake.MaxDeliveries
			}
			testenv.Eventually(t, patience, func() bool { return store.asked.Load() >= enough }, "the store was asked often enough")
			if n := p.waiting(); n != 10 {
				t.Errorf("%d messages wait, want 10", n)
			}
			store.there.Store(true)
			p.drained()
			if n := taskCount(t, store); n != 10 || p.messages(bus.StreamSubmitFailed) != 0 {
				t.Errorf("%d tasks, %d failed; want 10 and 0", n, p.messages(bus.StreamSubmitFailed))
			}
		})
	}
}

func TestAMessageThatComesAgainIsTheSameTaskAndToldAgain(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t))
	var broke atomic.Int32
	cfg := testConfig(t)
	cfg.Reached = func(point string) {
		if point == PointSubmitted && broke.Add(1) <= 3 {
			panic("accepted, and not acknowledged")
		}
	}
	p.dispatcher(cfg, store)
	// By the time it is acknowledged it would be too late to accept it.
	soon := time.Now().Add(time.Hour).Format(time.RFC3339)
	reply := p.ask(nativeBody("0:10.0.0.1"), "Procfleet-Not-After", soon)
	p.drained()
	task := onlyTask(t, store, procfleet.TaskAccepted)
	if reply.Header.Get("Procfleet-Task") != string(task.ID) || broke.Load() != 4 {
		t.Errorf("replied %v after %d deliveries; the task is %s", reply.Header, broke.Load(), task.ID)
	}
}

// A producer that sent no idempotency key must not receive a conflict of keys.
func TestAMessageWithoutAKeyConflictsWithNothing(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, testConfig(t))
	var reads atomic.Int32
	cfg := testConfig(t)
	cfg.Reached = func(point string) {
		if point == PointSubmitted && reads.Add(1) == 1 {
			panic("accepted, and not acknowledged")
		}
	}
	in := p.intake(cfg, store)
	native := in.acceptCalls[nativeCall]
	decode := native.accept.Decode
	native.accept.Decode = func(r *dialect.Request) (procfleet.Submission, error) {
		sub, err := decode(r)
		sub.Business = fmt.Sprint(reads.Load()) // as another build may decode it
		return sub, err
	}
	in.acceptCalls[nativeCall] = native
	p.run(in)
	reply := p.ask(nativeBody("0:10.0.0.1"))
	p.drained()
	task := onlyTask(t, store, procfleet.TaskAccepted)
	if reply.Header.Get("Procfleet-Task") != string(task.ID) || reads.Load() != 2 {
		t.Errorf("replied %v %s after %d deliveries", reply.Header, reply.Data, reads.Load())
	}
}

func TestAnAcceptedMessageDoesNotExpire(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	s := testSubmitter(t, store, &fakeQueue{})
	now, err := store.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{key: "k", notAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	past := terms{key: "k", notAfter: now.Add(-time.Hour)}
	if again, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), past); err != nil || again.ID != first.ID {
		t.Errorf("the repeat is %s, %v; want %s", again.ID, err, first.ID)
	}
	past.key = "other"
	if _, err := s.submit(t.Context(), submission(t, procfleet.ActionStart, 1), past); !errors.Is(err, taskstore.ErrExpired) {
		t.Errorf("too late: %v", err)
	}
}

// counting counts the tasks that a dispatcher creates.
type counting struct {
	Store
	made atomic.Int32
}

func (s *counting) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	s.made.Add(1)
	return s.Store.Create(ctx, d)
}

func TestDispatchersShareTheWorkAndOneCanGo(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	one, two := &counting{Store: store}, &counting{Store: store}
	p := produce(t, testConfig(t))
	cfg := testConfig(t)
	cfg.Limits.Submissions = 2
	stop := p.dispatcher(cfg, one)
	p.dispatcher(cfg, two)
	published := 0
	testenv.Eventually(t, patience, func() bool {
		for range 20 {
			p.publish(nativeBody("0:10.0.0.1"))
		}
		published += 20
		p.drained()
		return one.made.Load() > 0 && two.made.Load() > 0
	}, "both have made tasks")
	for range 20 {
		p.publish(nativeBody("0:10.0.0.1"))
	}
	stop()
	p.drained()
	if n := taskCount(t, store); n != published+20 {
		t.Errorf("%d tasks, want %d", n, published+20)
	}
}

func TestATraceGoesOnFromTheProducer(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	p := produce(t, testConfig(t), openStore(t))
	p.ask(nativeBody("0:10.0.0.1"), "traceparent", parent)
	stream, err := p.JS.Stream(t.Context(), bus.StreamOps)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := msg.Header.Get("Traceparent"); !strings.Contains(got, "0af7651916cd43dd8448eb211c80319c") {
		t.Errorf("the chunk travels with %q in %v", got, msg.Header)
	}
}

// An invalid message is rejected with a reply, and does not affect other messages.
func FuzzSubmission(f *testing.F) {
	f.Add([]byte(nativeBody("0:10.0.0.1")), "native", "key", "answers.a", "2126-11-21T05:35:22Z", "{}")
	f.Add([]byte(gseBody(0, "10.0.0.1")), "gse.operate_proc_v2", "", "procfleet.agent.0.x", "", "{")
	f.Add([]byte("\xff"), "\x00", "\n", "$JS.>", "0000-00-00T00:00:00Z", "Bearer .")
	cfg := Config{Log: testenv.Silent(), Submissions: new(bus.Bus)}
	d, err := New(cfg, openStore(f), &fakeQueue{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, call, key, replyTo, notAfter, credentials string) {
		e := &delivery{in: d.intake, target: d.intake.acceptCalls[nativeCall], log: testenv.Silent(), start: time.Now(), id: "1", s: &bus.Submission{
			Body: body, Stored: time.Now(), Header: http.Header{
				"Procfleet-Dialect": {call}, "Idempotency-Key": {key}, "Procfleet-Reply-To": {replyTo},
				"Procfleet-Not-After": {notAfter}, "Authorization": {credentials}, "X-Bkapi-Authorization": {credentials},
			},
		}}
		_, err := e.accept(t.Context())
		if err == nil {
			return
		}
		if failure(err).Kind == dialect.Internal {
			t.Errorf("%v", err)
		}
		if _, err := e.target.family.Fail(failure(err), e.id).JSON(); err != nil {
			t.Error(err)
		}
	})
}
