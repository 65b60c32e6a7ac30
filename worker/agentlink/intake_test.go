package agentlink

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
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// newIntake returns an intake whose Store stores every request.
func newIntake(t *testing.T, conn *nats.Conn) *Intake {
	t.Helper()
	m, err := metrics.New(metricnoop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	in := &Intake{Name: "test", Log: testenv.Silent(), Link: &Link{
		Conn: conn, Metrics: m, Clock: storecall.ClockAt(time.Now()),
		Auth:  &Authenticator{Keys: func() *fleetkey.Ring { return nil }, Metrics: m, Log: testenv.Silent()},
		Calls: storecall.Policy{RetryMin: 50 * time.Millisecond, RetryMax: 3 * time.Second},
	}}
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	in.Open = func(msg *nats.Msg) *Request {
		return &Request{Msg: msg, ID: "id", Host: host}
	}
	in.Store = func(_ context.Context, requests []*Request) ([]*Request, error) {
		for _, r := range requests {
			in.Reply(r, &agentproto.Receipt{Event: r.ID})
		}
		return nil, nil
	}
	return in
}

// TestAgentsReturnAsARampWhenTheStoreIsBack has 10,000 agents send for an hour to
// a store that is unavailable, each at the time that its receipt names.
func TestAgentsReturnAsARampWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	const agents, outage = 10_000, time.Hour
	synctest.Test(t, func(t *testing.T) {
		b, policy := breaker{}, storecall.Policy{RetryMin: 50 * time.Millisecond, RetryMax: 3 * time.Second}
		back := time.Now().Add(outage)
		attempts := 0
		stored := map[int]int{} // by second after the return
		var last time.Duration
		var all sync.WaitGroup
		var mu sync.Mutex
		for range agents {
			all.Go(func() {
				for {
					if b.allow() {
						if !time.Now().Before(back) {
							b.report(nil, policy)
							mu.Lock()
							last = max(last, time.Since(back))
							stored[int(time.Since(back)/time.Second)]++
							mu.Unlock()
							return
						}
						b.report(errors.New("unavailable"), policy)
						mu.Lock()
						attempts++
						mu.Unlock()
					}
					time.Sleep(b.retryAfter())
				}
			})
		}
		all.Wait()
		// One attempt per pause of 3 s less 10 %, and the attempts before the breaker first opened.
		if most := agents/100 + int(outage/(2700*time.Millisecond)); attempts > most {
			t.Errorf("%d attempts while the store was unavailable, at most %d are allowed", attempts, most)
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

// gated is a store that blocks one batch until it is released.
type gated struct {
	entered chan struct{}
	release chan struct{}
}

// startInbox runs an inbox of a subject for a few messages.
func startInbox(t *testing.T, in *Intake, subject string) {
	t.Helper()
	box := &Inbox{
		Link: in.Link, Subject: subject, Name: in.Name, Log: testenv.Silent(),
		Limit: 3, LimitBytes: 1 << 20, Batch: 1, BatchBytes: 1 << 20,
		Take: in.Take, Overflow: in.Overflow, Refuses: in.Refuses,
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	if err := box.sub.SetPendingLimits(1<<10, 1<<20); err != nil { // only the inbox is full here
		t.Fatal(err)
	}
	if err := in.Link.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.Run(ctx, context.WithoutCancel(ctx))
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
	keep := big.Store
	big.Store = func(ctx context.Context, requests []*Request) ([]*Request, error) {
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
	for range 3 + over { // three are queued
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
			t.Errorf("what was queued: %+v", receipt)
		}
	}
}

// An inbox processes all queued requests before it ends.
func TestAnInboxThatStopsWorksOffWhatIsQueued(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	in := newIntake(t, conn)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	keep := in.Store
	in.Store = func(ctx context.Context, requests []*Request) ([]*Request, error) {
		entered <- struct{}{}
		<-release
		return keep(ctx, requests)
	}
	box := &Inbox{
		Link: in.Link, Subject: "test", Name: in.Name, Log: testenv.Silent(),
		Limit: 100, LimitBytes: 1 << 20, Batch: 1, BatchBytes: 1 << 20, Take: in.Take, Overflow: in.Overflow,
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.Run(ctx, context.WithoutCancel(ctx))
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

// An inbox must end its subscription at the stop, even if its queue is never empty.
func TestAnInboxStopsUnderLoad(t *testing.T) {
	t.Parallel()
	conn := testenv.StartNATS(t).Conn
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	box := &Inbox{
		Link: newIntake(t, conn).Link, Subject: "test", Name: "test", Log: testenv.Silent(),
		Limit: 100, LimitBytes: 1 << 20, Batch: 1, BatchBytes: 1 << 20, Overflow: func(*nats.Msg) {},
	}
	publish := func() {
		if err := conn.Publish("test", nil); err != nil {
			t.Error(err)
		}
	}
	taken := 0
	box.Take = func(context.Context, []*nats.Msg) {
		if taken++; taken == 3 {
			stop()
		}
		publish()
		for box.waiting.Load() == 0 { // the next one is there before this one is done
			select {
			case <-box.closed:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		box.Run(ctx, t.Context())
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
	in.Link.Calls.RetryMin, in.Link.Calls.RetryMax = time.Hour, time.Hour
	attempts := 0
	in.Store = func(_ context.Context, requests []*Request) ([]*Request, error) {
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
	if err := Guarded(func() error { panic("index out of range") }); err == nil || fmt.Sprint(err) != "panic: index out of range" {
		t.Errorf("got %v", err)
	}
}
