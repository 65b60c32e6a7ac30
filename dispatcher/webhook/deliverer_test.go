package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
)

// testStore is a catalog with leases in memory.
type testStore struct {
	*catalogtest.Model
	mu     sync.Mutex
	leases map[string]string
	until  map[string]time.Time
}

func newTestStore() *testStore {
	return &testStore{Model: catalogtest.NewModel(), leases: map[string]string{}, until: map[string]time.Time{}}
}

func (s *testStore) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[name] != holder && time.Now().Before(s.until[name]) {
		return false, nil
	}
	s.leases[name], s.until[name] = holder, time.Now().Add(ttl)
	return true, nil
}

func (s *testStore) Release(_ context.Context, name, holder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[name] == holder {
		delete(s.until, name)
	}
	return nil
}

// unreachable is the store of a dispatcher that was killed: its calls have no effect.
type unreachable struct {
	*testStore
	dead chan struct{}
}

var errUnreachable = errors.New("unreachable")

func (s *unreachable) alive() error {
	select {
	case <-s.dead:
		return errUnreachable
	default:
		return nil
	}
}

func (s *unreachable) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	return s.testStore.Webhooks(ctx)
}

func (s *unreachable) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	if err := s.alive(); err != nil {
		return err
	}
	return s.testStore.RecordDelivery(ctx, application, name, state, dead)
}

func (s *unreachable) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if err := s.alive(); err != nil {
		return false, err
	}
	return s.testStore.Lease(ctx, name, holder, ttl)
}

func (s *unreachable) Release(ctx context.Context, name, holder string) error {
	if err := s.alive(); err != nil {
		return err
	}
	return s.testStore.Release(ctx, name, holder)
}

// testFeed is a stream of events whose positions begin after dropped.
type testFeed struct {
	mu      sync.Mutex
	dropped uint64
	events  []bus.TaskEvent
	grown   chan struct{}
}

func newTestFeed() *testFeed { return &testFeed{grown: make(chan struct{})} }

func (f *testFeed) add(events int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range events {
		n := f.dropped + uint64(len(f.events)) + 1
		f.events = append(f.events, bus.TaskEvent{
			Position: n,
			Record:   audit.Record{Task: procfleet.TaskID(fmt.Sprintf("T%d", n)), Number: 1, Event: audit.Accepted, Business: "2", At: time.Now()},
		})
	}
	close(f.grown)
	f.grown = make(chan struct{})
}

func (f *testFeed) TaskEventRange(context.Context) (first, last uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dropped + 1, f.dropped + uint64(len(f.events)), nil
}

func (f *testFeed) FollowTasks(ctx context.Context, after uint64, visit func(bus.TaskEvent) error) error {
	for {
		f.mu.Lock()
		if after < f.dropped {
			f.mu.Unlock()
			return bus.ErrDropped
		}
		events, grown := f.events[after-f.dropped:], f.grown
		f.mu.Unlock()
		for _, e := range events {
			if err := visit(e); err != nil {
				return err
			}
			after = e.Position
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// receivers record what webhooks receive.
type receivers struct {
	mu    sync.Mutex
	got   map[string][]string    // accepted events of each webhook
	at    map[string][]time.Time // attempts
	reply func(webhook, event string) error
	hang  map[string]bool // webhooks that never reply
}

func newReceivers() *receivers {
	return &receivers{got: map[string][]string{}, at: map[string][]time.Time{}, hang: map[string]bool{}, reply: func(string, string) error { return nil }}
}

func (r *receivers) send(ctx context.Context, w *catalog.Webhook, id string, _ []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[w.Name] = append(r.at[w.Name], time.Now())
	if r.hang[w.Name] {
		r.mu.Unlock()
		select {
		case <-time.After(sendTimeout):
		case <-ctx.Done():
		}
		r.mu.Lock()
		return errors.New("no reply")
	}
	if err := r.reply(w.Name, id); err != nil {
		return err
	}
	r.got[w.Name] = append(r.got[w.Name], id)
	return nil
}

func (r *receivers) of(webhook string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got[webhook])
}

func (r *receivers) attempts(webhook string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at[webhook])
}

func eventsFrom(first, last int) (ids []string) {
	for n := first; n <= last; n++ {
		ids = append(ids, fmt.Sprintf("T%d/1", n))
	}
	return ids
}

// env is a store, a stream and receivers.
type env struct {
	*testing.T
	store *testStore
	feed  *testFeed
	*receivers
	failing atomic.Int64 // webhooks
	slower  int          // factor of the intervals at which deliverers use the store; 0 means 1
}

// days makes deliverers use the store once in minutes: tests of days of retries would otherwise run
// hundreds of thousands of reads and renewals.
func (e *env) days() { e.slower = 60 }

func newEnv(t *testing.T) *env {
	t.Helper()
	return &env{T: t, store: newTestStore(), feed: newTestFeed(), receivers: newReceivers()}
}

// run starts a deliverer that ends with the test, or when the returned function is called.
func (e *env) run(store Store) (stop func()) {
	log := logrus.New()
	log.Out = io.Discard
	d := NewDeliverer(Config{
		Store: store, Feed: e.feed, Send: e.send, Body: func(*bus.TaskEvent) ([]byte, error) { return []byte("{}"), nil },
		Selects: func(w *catalog.Webhook, ev *bus.TaskEvent) (bool, error) {
			return w.Business == "" || w.Business == ev.Business, nil
		},
		Count: func(string) {}, Failing: func(change int64) { e.failing.Add(change) }, Log: log, Reached: func(string) {},
	})
	for _, interval := range []*time.Duration{&d.readEvery, &d.leaseTTL} {
		*interval *= time.Duration(max(1, e.slower))
	}
	ctx, cancel := context.WithCancel(e.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (e *env) set(name string, change func(*catalog.Webhook)) {
	e.Helper()
	w := catalog.Webhook{Name: name, URL: "https://hooks.example", Secrets: []catalog.WebhookSecret{NewSecret()}, SetAt: time.Now()}
	change(&w)
	if err := e.store.SetWebhook(e.Context(), w); err != nil {
		e.Fatal(err)
	}
}

func unchanged(*catalog.Webhook) {}

func (e *env) webhook(name string) catalog.Webhook {
	e.Helper()
	all, err := e.store.Webhooks(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	i := slices.IndexFunc(all, func(w catalog.Webhook) bool { return w.Name == name })
	return all[i]
}

func (e *env) want(webhook string, events []string) {
	e.Helper()
	if got := e.of(webhook); !slices.Equal(got, events) {
		e.Errorf("webhook %s received %q, want %q", webhook, got, events)
	}
}

func TestAHangingReceiverDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.hang["hangs"] = true
		e.set("hangs", unchanged)
		e.set("works", unchanged)
		stop := e.run(e.store)
		defer stop()
		e.feed.add(100)
		time.Sleep(sendTimeout / 2)
		e.want("works", eventsFrom(1, 100))
		if n := len(e.attempts("hangs")); n != 1 {
			t.Errorf("%d attempts while one hangs", n)
		}
	})
}

func TestAFailingDeliveryIsRetriedFor72Hours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.days()
		e.reply = func(_, event string) error {
			if event == "T2/1" {
				return errors.New("answered 500")
			}
			return nil
		}
		e.set("hook", unchanged)
		stop := e.run(e.store)
		defer stop()
		e.feed.add(3)
		time.Sleep(time.Hour)
		e.want("hook", eventsFrom(1, 1))
		if n := e.failing.Load(); n != 1 {
			t.Errorf("%d webhooks fail", n)
		}
		if w := e.webhook("hook"); w.State.Position != 1 || w.State.Failure.Problem != "answered 500" || w.Dead != 0 {
			t.Errorf("after an hour: %+v", w)
		}
		time.Sleep(giveUpAfter + backoffMax)
		e.want("hook", []string{"T1/1", "T3/1"})
		dead, _ := e.store.DeadDeliveries(t.Context(), "", "hook")
		if w := e.webhook("hook"); len(dead) != 1 || dead[0].Event != "T2/1" || w.State.Failure != (catalog.Failure{}) || w.State.Position != 3 {
			t.Errorf("after 78 hours: %+v, dead %+v", w, dead)
		}
		if n := e.failing.Load(); n != 0 {
			t.Errorf("%d webhooks fail after the retries", n)
		}
		attempts := e.attempts("hook")[1:]
		for i, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
			if pause := attempts[i+1].Sub(attempts[i]); pause < want || pause > want+retryUnavailable {
				t.Errorf("pause %d is %v, want %v", i, pause, want)
			}
		}
		for i := range attempts[1:] {
			if pause := attempts[i+1].Sub(attempts[i]); pause > backoffMax+retryUnavailable {
				t.Errorf("a pause of %v", pause)
			}
		}
	})
}

// TestAReceiverThatWasAwayForDaysGetsTheLast72Hours: the events before are dead.
func TestAReceiverThatWasAwayForDaysGetsTheLast72Hours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.days()
		away := true
		e.reply = func(string, string) error {
			if away {
				return errors.New("connection refused")
			}
			return nil
		}
		e.set("hook", unchanged)
		stop := e.run(e.store)
		defer stop()
		for range 5 * 24 {
			e.feed.add(1)
			time.Sleep(time.Hour)
		}
		e.mu.Lock()
		away = false
		e.mu.Unlock()
		time.Sleep(backoffMax + time.Minute)
		dead, _ := e.store.DeadDeliveries(t.Context(), "", "hook")
		got := e.of("hook")
		if len(dead)+len(got) != 5*24 || len(dead) < 36 || len(dead) > 48 || !slices.Equal(got, eventsFrom(len(dead)+1, 5*24)) {
			t.Errorf("%d dead deliveries, received %q", len(dead), got)
		}
	})
}

func TestAReceiverThatIsGoneGetsNothingUntilItIsSetAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.days()
		e.reply = func(string, string) error { return errGone }
		e.set("hook", unchanged)
		stop := e.run(e.store)
		defer stop()
		e.feed.add(1)
		time.Sleep(24 * time.Hour)
		if n := len(e.attempts("hook")); n != 1 || !e.webhook("hook").State.Failure.Ended {
			t.Fatalf("%d attempts, %+v", n, e.webhook("hook"))
		}
		e.mu.Lock()
		e.reply = func(string, string) error { return nil }
		e.mu.Unlock()
		e.set("hook", unchanged)
		time.Sleep(time.Hour)
		e.want("hook", eventsFrom(1, 1))
	})
}

func TestADeadDispatchersWebhookIsTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		killed := make(chan struct{})
		e.set("hook", unchanged)
		first := e.run(&unreachable{e.store, killed})
		defer first()
		e.feed.add(50)
		time.Sleep(2 * readEvery)
		second := e.run(e.store)
		defer second()
		time.Sleep(time.Minute)
		e.want("hook", eventsFrom(1, 50)) // the second one waits
		close(killed)
		e.feed.add(50)
		time.Sleep(leaseTTL + leaseTTL/3 + readEvery)
		got := e.of("hook")
		slices.Sort(got)
		if got = slices.Compact(got); len(got) != 100 {
			t.Errorf("%d events", len(got))
		}
		if w := e.webhook("hook"); w.State.Position != 100 {
			t.Errorf("position %d", w.State.Position)
		}
	})
}

func TestAnotherDispatcherContinuesWhereTheFirstStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.set("hook", unchanged)
		stop := e.run(e.store)
		e.feed.add(50)
		time.Sleep(2 * readEvery)
		stop()
		stop = e.run(e.store)
		defer stop()
		e.feed.add(50)
		time.Sleep(2 * readEvery)
		e.want("hook", eventsFrom(1, 100))
	})
}

func TestEventsThatTheStreamDroppedAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.feed.dropped = 7
		e.feed.add(3)
		e.set("hook", func(w *catalog.Webhook) { w.State.Position = 2 })
		stop := e.run(e.store)
		defer stop()
		time.Sleep(time.Minute)
		e.want("hook", eventsFrom(8, 10))
		if w := e.webhook("hook"); w.State.Missed != 5 {
			t.Errorf("%d events missed, want 5", w.State.Missed)
		}
	})
}

// TestAWebhookOutlivesTheStream: the positions of a new stream begin again.
func TestAWebhookOutlivesTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.feed.add(3)
		e.set("hook", func(w *catalog.Webhook) { w.State.Position = 500 })
		stop := e.run(e.store)
		defer stop()
		time.Sleep(time.Minute)
		e.want("hook", eventsFrom(1, 3))
	})
}

func TestOnlySelectedEventsAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.set("other", func(w *catalog.Webhook) { w.Business = "3" })
		e.set("paused", func(w *catalog.Webhook) { w.Paused = true })
		e.set("removed", unchanged)
		stop := e.run(e.store)
		defer stop()
		e.feed.add(2)
		time.Sleep(time.Minute)
		if _, err := e.store.RemoveWebhook(t.Context(), "", "removed"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * readEvery)
		e.feed.add(2)
		time.Sleep(time.Minute)
		e.want("other", nil)
		e.want("paused", nil)
		e.want("removed", eventsFrom(1, 2))
		if w := e.webhook("other"); w.State.Position != 4 {
			t.Errorf("position %d", w.State.Position)
		}
		e.set("paused", unchanged)
		time.Sleep(time.Minute)
		e.want("paused", eventsFrom(1, 4))
	})
}
