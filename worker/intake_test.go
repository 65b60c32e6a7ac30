package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// newIntake returns an intake of which keep stores whatever comes.
func newIntake(t *testing.T, conn *nats.Conn) *intake {
	t.Helper()
	m, err := newMetrics(metricnoop.Meter{}, newParkingRoom(1))
	if err != nil {
		t.Fatal(err)
	}
	timing := Timing{}.withDefaults()
	in := &intake{
		name: "test", conn: conn, metrics: m, clock: &clock{look: look{local: time.Now(), store: time.Now()}},
		believer: &believer{keys: func() *fleetkey.Ring { return nil }, metrics: m, log: testenv.Silent()},
		gate:     gate{least: timing.RetryMin, most: timing.RetryMax}, log: testenv.Silent(),
	}
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	in.open = func(msg *nats.Msg) *request {
		return &request{msg: msg, kind: agentproto.TypeEvent, id: "id", host: host, receipt: true}
	}
	in.keep = func(_ context.Context, requests []*request) ([]*request, error) {
		for _, r := range requests {
			in.reply(r, &agentproto.Receipt{Event: r.id})
		}
		return nil, nil
	}
	return in
}

// TestAgentsReturnAsARampWhenTheStoreIsBack has 10,000 agents send for an hour to
// a store that is unavailable, each at the time that its receipt names.
func TestAgentsReturnAsARampWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	const agents, away = 10_000, time.Hour
	synctest.Test(t, func(t *testing.T) {
		g := gate{least: 50 * time.Millisecond, most: 3 * time.Second}
		back := time.Now().Add(away)
		attempts := 0
		stored := map[int]int{} // by second after the return
		var last time.Duration
		var all sync.WaitGroup
		var mu sync.Mutex
		for range agents {
			all.Go(func() {
				for {
					if g.enter() {
						if !time.Now().Before(back) {
							g.leave(nil)
							mu.Lock()
							last = max(last, time.Since(back))
							stored[int(time.Since(back)/time.Second)]++
							mu.Unlock()
							return
						}
						g.leave(errors.New("unavailable"))
						mu.Lock()
						attempts++
						mu.Unlock()
					}
					time.Sleep(g.retryAfter())
				}
			})
		}
		all.Wait()
		// One attempt per pause of 3 s less 10 %, and those that found the gate open at first.
		if most := agents/100 + int(away/(2700*time.Millisecond)); attempts > most {
			t.Errorf("%d attempts while the store was away, at most %d are allowed", attempts, most)
		}
		for second, n := range stored {
			if n > agents/5 {
				t.Errorf("%d of %d agents came in second %d", n, agents, second)
			}
		}
		if last > 2*retryMost {
			t.Errorf("the last agent came after %v", last)
		}
	})
}

// gated is a store that one batch is in, until it is released.
type gated struct {
	entered chan struct{}
	release chan struct{}
}

// startInbox runs an inbox of a subject with room for a few messages.
func startInbox(t *testing.T, in *intake, subject string) {
	t.Helper()
	box := &inbox{
		conn: in.conn, subject: subject, name: in.name, log: testenv.Silent(), metrics: in.metrics,
		room: 3, roomBytes: 1 << 20, batch: 1, batchBytes: 1 << 20,
		take: in.take, overflow: in.overflow, refuses: in.gate.refuses,
	}
	if err := box.start(); err != nil {
		t.Fatal(err)
	}
	if err := box.sub.SetPendingLimits(1<<10, 1<<20); err != nil { // only the inbox is full here
		t.Fatal(err)
	}
	if err := in.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.run(ctx, context.WithoutCancel(ctx))
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

func receiptOn(t *testing.T, sub *nats.Subscription) agentproto.Receipt {
	t.Helper()
	msg, err := sub.NextMsg(20 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var receipt agentproto.Receipt
	if err := agentproto.Decode(msg.Data, agentproto.TypeReceipt, &receipt); err != nil {
		t.Fatal(err)
	}
	return receipt
}

func TestAFullInboxRepliesBusyAtOnceAndAnotherKeepsWorking(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	big, small := newIntake(t, conn), newIntake(t, conn)
	stuck := gated{make(chan struct{}), make(chan struct{})}
	keep := big.keep
	big.keep = func(ctx context.Context, requests []*request) ([]*request, error) {
		select {
		case stuck.entered <- struct{}{}:
		case <-stuck.release:
		}
		<-stuck.release
		return keep(ctx, requests)
	}
	startInbox(t, big, "test.big")
	startInbox(t, small, "test.small")
	release := sync.OnceFunc(func() { close(stuck.release) })
	t.Cleanup(release) // before the inboxes end

	replies, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	send := func(subject string) {
		t.Helper()
		if err := conn.PublishRequest(subject, replies.Subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	send("test.big")
	<-stuck.entered
	const over = 20
	for range 3 + over { // three find room
		send("test.big")
	}
	times := map[int64]bool{}
	for range over {
		receipt := receiptOn(t, replies)
		if after := receipt.RetryAfter(); after < retryLeast/2 || after > 3*retryLeast/2 {
			t.Errorf("an agent is to wait %v", after)
		}
		times[receipt.RetryAfterMS] = true
	}
	if len(times) < over/2 {
		t.Errorf("%d agents are to return at %d different times", over, len(times))
	}
	send("test.small")
	if receipt := receiptOn(t, replies); receipt.Event == "" {
		t.Errorf("the other inbox: %+v", receipt)
	}
	release()
	for range 4 {
		if receipt := receiptOn(t, replies); receipt.Event == "" {
			t.Errorf("what had room: %+v", receipt)
		}
	}
}

// TestAnInboxThatStopsWorksOffWhatIsQueued before its worker ends.
func TestAnInboxThatStopsWorksOffWhatIsQueued(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	in := newIntake(t, conn)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	keep := in.keep
	in.keep = func(ctx context.Context, requests []*request) ([]*request, error) {
		entered <- struct{}{}
		<-release
		return keep(ctx, requests)
	}
	box := &inbox{
		conn: conn, subject: "test", name: in.name, log: testenv.Silent(), metrics: in.metrics,
		room: 100, roomBytes: 1 << 20, batch: 1, batchBytes: 1 << 20, take: in.take, overflow: in.overflow,
	}
	if err := box.start(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.run(ctx, context.WithoutCancel(ctx))
	}()
	replies, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := conn.PublishRequest("test", replies.Subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	<-entered
	stop()
	close(release)
	<-ended
	for range 5 {
		receiptOn(t, replies)
	}
}

// TestAnInboxStopsUnderLoad: a queue that is never empty kept it from ending its
// subscription.
func TestAnInboxStopsUnderLoad(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	box := &inbox{
		conn: conn, subject: "test", name: "test", log: testenv.Silent(), metrics: newIntake(t, conn).metrics,
		room: 100, roomBytes: 1 << 20, batch: 1, batchBytes: 1 << 20, overflow: func(*nats.Msg) {},
	}
	publish := func() {
		if err := conn.Publish("test", nil); err != nil {
			t.Error(err)
		}
	}
	taken := 0
	box.take = func(context.Context, []*nats.Msg) {
		if taken++; taken == 3 {
			stop()
		}
		publish()
		for box.waiting() == 0 { // the next one is there before this one is done
			select {
			case <-box.closed:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
	if err := box.start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.run(ctx, t.Context())
	}()
	publish()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the inbox goes on")
	}
}

func TestWhileTheStoreIsUnavailableEachRequestIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	in := newIntake(t, conn)
	in.gate.least, in.gate.most = time.Hour, time.Hour
	attempts := 0
	in.keep = func(_ context.Context, requests []*request) ([]*request, error) {
		attempts++
		return requests, errors.New("unavailable")
	}
	startInbox(t, in, "test")
	for range 50 {
		msg, err := conn.Request("test", nil, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(msg.Data), "retry_after_ms") {
			t.Errorf("receipt %s", msg.Data)
		}
	}
	if attempts != 1 {
		t.Errorf("%d attempts to store, want 1", attempts)
	}
}

func TestAPanicOverAMessageIsAnError(t *testing.T) {
	t.Parallel()
	if err := guarded(func() error { panic("index out of range") }); err == nil || fmt.Sprint(err) != "panic: index out of range" {
		t.Errorf("got %v", err)
	}
}
