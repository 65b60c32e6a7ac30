package dispatcher

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

func TestAWatcherSeesATaskFromWhereItStandsToItsEnd(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(1)}, &scriptedHints{}
	cfg := testConfig(t)
	cfg.Hints = hints
	d := openWindow(t, cfg, store, nil)
	v := d.view(aTask(0).ID)
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
	} {
		if got := v.resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if !v.lines.Scan() || v.lines.Text() != "retry: 2000" {
		t.Errorf("the first line is %q", v.lines.Text())
	}
	snapshot := v.want("snapshot", 1)
	if shown := d.call(http.MethodGet, "/v1/tasks/"+string(aTask(0).ID), ""); snapshot.data+"\n" != shown.text {
		t.Errorf("the event says %s, the task is %s", snapshot.data, shown.text)
	}
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	store.set(aTask(4))
	hints.hint(false)
	progress := v.want("progress", 4)
	store.set(aTask(10))
	hints.hint(true)
	end := v.want("end", 10)
	v.wantEnd()
	if snapshot.id == "" || snapshot.id == progress.id || progress.id == end.id {
		t.Errorf("ids are %q, %q, %q", snapshot.id, progress.id, end.id)
	}
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 0 }, "the task to be followed no more")
}

func TestATaskThatIsOverIsOnlyItsEnd(t *testing.T) {
	t.Parallel()
	rejected := aTask(0)
	rejected.State, rejected.RejectReason = procfleet.TaskRejected, "the queue is full"
	for _, task := range []procfleet.Task{aTask(10), rejected} {
		d := openWindow(t, testConfig(t), &scriptedStore{task: task}, nil)
		v := d.view(task.ID)
		end, err := v.next()
		if err != nil || end.name != "end" {
			t.Fatalf("%s: %+v, %v", task.State, end, err)
		}
		v.wantEnd()
		for name, a := range map[string]answer{
			"header": d.call(http.MethodGet, eventsPath(task.ID), "", "Last-Event-ID", end.id),
			"query":  d.call(http.MethodGet, eventsPath(task.ID)+"?last_event_id="+end.id, ""),
			"both":   d.call(http.MethodGet, eventsPath(task.ID)+"?last_event_id=old", "", "Last-Event-ID", end.id),
		} {
			if a.status != http.StatusNoContent || a.text != "" {
				t.Errorf("%s, resumed by %s after the end: %d %s", task.State, name, a.status, a.text)
			}
		}
		again := d.view(task.ID, "Last-Event-ID", "foreign")
		if e, err := again.next(); err != nil || e != end {
			t.Errorf("%s, with a foreign id: %+v, %v", task.State, e, err)
		}
	}
}

func TestAStreamGoesOnAtAnotherDispatcherWithoutASnapshot(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(1)}, &scriptedHints{}
	first := openWindow(t, testConfig(t), store, nil)
	cfg := testConfig(t)
	cfg.Hints = hints
	second := openWindow(t, cfg, store, nil)
	v := first.view(aTask(0).ID)
	snapshot := v.want("snapshot", 1)
	v.leave()
	resumed := second.view(aTask(0).ID, "Last-Event-ID", snapshot.id)
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	store.set(aTask(2))
	hints.hint(false)
	resumed.want("progress", 2)
	late := second.view(aTask(0).ID, "Last-Event-ID", snapshot.id)
	late.want("snapshot", 2)
}

func TestWhatChangesBeforeATaskIsFollowedIsSeen(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	cfg := testConfig(t)
	cfg.Hints = &scriptedHints{onFollow: func() { store.set(aTask(10)) }}
	v := openWindow(t, cfg, store, nil).view(aTask(0).ID)
	for {
		e, err := v.next()
		if err != nil {
			t.Fatal(err)
		}
		if e.name == "end" && e.done() == 10 {
			return
		}
	}
}

func TestLostHintsAreRepairedByReading(t *testing.T) {
	t.Parallel()
	for name, hints := range map[string]Hints{"none": nil, "lost": &scriptedHints{}, "not to be had": &scriptedHints{err: errors.New("away")}} {
		store := &scriptedStore{task: aTask(1)}
		cfg := testConfig(t)
		cfg.Hints = hints
		v := openWindow(t, cfg, store, func(timing *watchTiming) { timing.poll = 10 * time.Millisecond }).view(aTask(0).ID)
		v.want("snapshot", 1)
		store.set(aTask(10))
		if e, err := v.next(); err != nil || e.name != "end" {
			t.Errorf("hints %s: %+v, %v", name, e, err)
		}
	}
}

func TestHintsAreFollowedWhenTheyCanBeHadAgain(t *testing.T) {
	t.Parallel()
	hints := &scriptedHints{err: errors.New("away")}
	cfg := testConfig(t)
	cfg.Hints = hints
	v := openWindow(t, cfg, &scriptedStore{task: aTask(1)}, func(timing *watchTiming) { timing.poll = time.Millisecond }).view(aTask(0).ID)
	v.want("snapshot", 1)
	hints.mu.Lock()
	hints.err = nil
	hints.mu.Unlock()
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
}

func TestAStoreThatGoesAwayDoesNotEndAStream(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	d := openWindow(t, Config{Log: testenv.Silent()}, store, func(timing *watchTiming) {
		timing.poll, timing.retryMin, timing.retryMax = time.Millisecond, time.Millisecond, 20*time.Millisecond
	})
	v := d.view(aTask(0).ID)
	v.want("snapshot", 1)
	store.fail(taskstore.ErrUnavailable)
	before := store.count()
	testenv.Eventually(t, patience, func() bool { return store.count() > before+3 }, "the store to be asked in vain")
	if a := d.call(http.MethodGet, eventsPath(aTask(0).ID), ""); !nativeCode(503, "unavailable")(a) || a.header.Get("Retry-After") == "" {
		t.Errorf("who comes meanwhile: %d %v %s", a.status, a.header, a.text)
	}
	store.change(func() { store.err, store.panic = nil, "a bug" })
	before = store.count()
	testenv.Eventually(t, patience, func() bool { return store.count() > before+3 }, "the store to panic")
	store.change(func() { store.panic, store.task = nil, aTask(3) })
	v.want("progress", 3)
	store.fail(taskstore.ErrNotFound) // the task has expired
	v.wantEnd()
}

func TestWhatCannotBeWatchedIsAnsweredAsOtherQueriesAre(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	d := openWindow(t, Config{Log: testenv.Silent()}, store, nil)
	if a := d.call(http.MethodGet, eventsPath("GSETASK:20200101000000:1"), ""); !nativeCode(404, "not_found")(a) {
		t.Errorf("unknown task: %d %s", a.status, a.text)
	}
	bad, other := d.call(http.MethodGet, eventsPath("nonsense"), ""), d.call(http.MethodGet, "/v1/tasks/nonsense", "")
	if bad.status != other.status || bad.text != other.text {
		t.Errorf("no id: %d %s, and %d %s by other calls", bad.status, bad.text, other.status, other.text)
	}
	if a := d.call(http.MethodPost, eventsPath(aTask(0).ID), ""); !nativeCode(405, "method_not_allowed")(a) || a.header.Get("Allow") != "GET" {
		t.Errorf("POST: %d %v %s", a.status, a.header, a.text)
	}
	head, err := http.Head(d.url + eventsPath(aTask(0).ID))
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, head.Body)
	if head.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", head.StatusCode)
	}
	store.fail(taskstore.ErrUnavailable)
	if a := d.call(http.MethodGet, eventsPath(aTask(0).ID), ""); !nativeCode(503, "unavailable")(a) || a.header.Get("Retry-After") == "" {
		t.Errorf("store away: %d %v %s", a.status, a.header, a.text)
	}
	store.change(func() { store.panic = "a bug" })
	if a := d.call(http.MethodGet, eventsPath(aTask(0).ID), ""); !nativeCode(500, "internal")(a) || strings.Contains(a.text, "a bug") {
		t.Errorf("panic: %d %s", a.status, a.text)
	}
}

func TestMoreWatchersThanTheLimitAreTurnedAway(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Watchers = 2
	d := openWindow(t, cfg, &scriptedStore{task: aTask(1)}, nil)
	first, second := d.view(aTask(0).ID), d.view(aTask(0).ID)
	if a := d.call(http.MethodGet, eventsPath(aTask(0).ID), ""); !nativeCode(503, "unavailable")(a) || a.header.Get("Retry-After") == "" {
		t.Errorf("the third: %d %v %s", a.status, a.header, a.text)
	}
	second.leave()
	testenv.Eventually(t, patience, func() bool {
		v, err := d.tryView(aTask(0).ID, nil)
		return err == nil && v.resp.StatusCode == http.StatusOK
	}, "room for another")
	first.want("snapshot", 1)
}

func TestQuickChangesAreFewEventsAndTheLastIsAmongThem(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(0)}, &scriptedHints{}
	cfg := testConfig(t)
	cfg.Hints = hints
	d := openWindow(t, cfg, store, nil)
	v := d.view(aTask(0).ID)
	v.want("snapshot", 0)
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	began, before := time.Now(), store.count()
	for i := range 10_000 {
		store.set(aTask(1 + i%8))
		hints.hint(false)
	}
	store.set(aTask(9))
	hints.hint(false)
	events := 0
	for last := -1; last != 9; events++ {
		e, err := v.next()
		if err != nil {
			t.Fatal(err)
		}
		last = e.done()
	}
	most := int(time.Since(began)/d.watches.timing.gap) + 2
	if reads := store.count() - before; events > most || reads > most {
		t.Errorf("%d events, %d reads; want at most %d", events, reads, most)
	}
	store.set(aTask(10))
	hints.hint(true)
	v.want("end", 10)
}

func TestTheHintOfAnEndDoesNotWaitForTheGap(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(0)}, &scriptedHints{}
	cfg := testConfig(t)
	cfg.Hints = hints
	d := openWindow(t, cfg, store, func(timing *watchTiming) { timing.gap = time.Hour })
	v := d.view(aTask(0).ID)
	v.want("snapshot", 0)
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	hints.hint(false)
	store.set(aTask(10))
	hints.hint(true)
	v.want("end", 10)
}

func TestWhoJoinsLaterSeesTheTaskAsItStandsThen(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	d := openWindow(t, testConfig(t), store, func(timing *watchTiming) { timing.gap = 0 })
	first := d.view(aTask(0).ID)
	first.want("snapshot", 1)
	store.set(aTask(2)) // without a hint
	d.view(aTask(0).ID).want("snapshot", 2)
	first.want("progress", 2)
}

func TestStreamsOutlastTheTimeLimitsOfRequestsAndSayThatTheyAreAlive(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	cfg := testConfig(t)
	cfg.Timeouts.Read, cfg.Timeouts.Write = 200*time.Millisecond, 200*time.Millisecond
	s := serveWindow(t, cfg, store, func(timing *watchTiming) {
		timing.keepAlive, timing.poll = 50*time.Millisecond, time.Hour
	})
	v := s.view(aTask(0).ID)
	v.want("snapshot", 1)
	began := time.Now()
	for time.Since(began) < time.Second {
		if !v.lines.Scan() {
			t.Fatalf("cut after %v: %v", time.Since(began), v.lines.Err())
		}
		if line := v.lines.Text(); line != "" && line != ": still here" {
			t.Fatalf("line %q", line)
		}
	}
}

// served is a dispatcher that runs.
type served struct {
	*testServer
	watches *watches
	stop    context.CancelFunc
	ended   <-chan error
}

func serveWindow(t *testing.T, cfg Config, store Store, adjust func(*watchTiming)) *served {
	t.Helper()
	bound := make(chan net.Addr, 1)
	cfg.Listen = "127.0.0.1:0"
	cfg.Listening = func(a net.Addr) { bound <- a }
	d, err := New(cfg, store, &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	adjust(&d.watches.timing)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &served{&testServer{t: t, url: "http://" + (<-bound).String(), store: store}, d.watches, cancel, done}
}

func TestADispatcherThatStopsEndsItsStreamsInGoodOrder(t *testing.T) {
	t.Parallel()
	store := &scriptedStore{task: aTask(1)}
	s := serveWindow(t, testConfig(t), store, func(timing *watchTiming) { timing.poll = time.Hour })
	var views []*viewer
	for range 20 {
		v := s.view(aTask(0).ID)
		v.want("snapshot", 1)
		views = append(views, v)
	}
	s.stop()
	for _, v := range views {
		v.wantEnd()
	}
	if err := <-s.ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	if _, err := s.watches.join(topicKey{}, nil); !errors.Is(err, errStopping) {
		t.Errorf("who comes later: %v", err)
	}
}

// smallBuffers is a listener whose connections have small send buffers.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = errors.Join(err, tcp.SetWriteBuffer(4<<10))
	}
	return conn, err
}

func TestAReaderThatReadsNothingIsDroppedAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: bulky(0)}, &scriptedHints{}
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Log: testenv.Silent(), Hints: hints, Listener: smallBuffers{listener}, Meter: registry.Meter("dispatcher"), Metrics: registry.Handler()}
	cfg.Timeouts.Watcher = time.Second
	s := serveWindow(t, cfg, store, func(timing *watchTiming) { timing.gap, timing.poll = 0, time.Hour })
	readNothing(t, listener.Addr())
	var others []*viewer
	for range 5 {
		v := s.view(aTask(0).ID)
		v.want("snapshot", 0)
		others = append(others, v)
	}
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	dropped := func() bool {
		return strings.Contains(s.call(http.MethodGet, "/metrics", "").text, "procfleet_dispatcher_dropped_watchers_total 1")
	}
	for i := 0; !dropped(); i++ {
		if i > 2000 {
			t.Fatal("the reader that reads nothing is not dropped")
		}
		done := 1 + i%2
		store.set(bulky(done))
		hints.hint(false)
		for _, v := range others { // the slow reader does not delay them
			v.want("progress", done)
		}
	}
	store.set(bulky(10))
	hints.hint(true)
	for _, v := range others {
		v.want("end", 10)
		v.wantEnd()
	}
	testenv.Eventually(t, patience, func() bool {
		text := s.call(http.MethodGet, "/metrics", "").text
		return strings.Contains(text, "procfleet_dispatcher_watchers 0") && strings.Contains(text, "procfleet_dispatcher_watched_tasks 0")
	}, "the metrics to say that nobody watches")
}

// readNothing opens a stream and reads only its first bytes.
func readNothing(t *testing.T, addr net.Addr) {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+eventsPath(aTask(0).ID)+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReaderSize(conn, 16).ReadByte(); err != nil {
		t.Fatal(err)
	}
}

func TestAReaderThatReadsNothingDoesNotHoldUpADispatcherThatStops(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: bulky(0)}, &scriptedHints{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Log: testenv.Silent(), Hints: hints, Listener: smallBuffers{listener}}
	cfg.Timeouts.Watcher, cfg.Timeouts.Drain = time.Hour, time.Hour
	s := serveWindow(t, cfg, store, func(timing *watchTiming) { timing.gap, timing.poll = 0, time.Hour })
	readNothing(t, listener.Addr())
	other := s.view(aTask(0).ID)
	other.want("snapshot", 0)
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	for i := range 20 { // more than the buffers of the connection
		store.set(bulky(1 + i%2))
		hints.hint(false)
		other.want("progress", 1+i%2)
	}
	s.stop()
	other.wantEnd()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("Run ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Run goes on")
	}
}

// bulky returns aTask with a long text, so that its events are large.
func bulky(done int) procfleet.Task {
	task := aTask(done)
	task.Callback = "http://" + strings.Repeat("x", 30_000)
	return task
}

func TestAStreamKeepsNoRoomForBigBodies(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.BigBodies = 1
	d := openWindow(t, cfg, &scriptedStore{task: aTask(1)}, nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+eventsPath(aTask(0).ID), io.MultiReader(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, resp.Body)
	r, err = http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+nativePath, io.MultiReader(strings.NewReader("{")))
	if err != nil {
		t.Fatal(err)
	}
	other, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, other.Body)
	if other.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", other.StatusCode)
	}
}

func TestNothingIsKeptOfWatchersThatComeAndGo(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(1)}, &scriptedHints{}
	cfg := testConfig(t)
	cfg.Hints = hints
	d := openWindow(t, cfg, store, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				v, err := d.tryView(aTask(0).ID, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if e, err := v.next(); err != nil || e.name != "snapshot" {
					t.Errorf("%+v, %v", e, err)
				}
				v.leave()
			}
		})
	}
	wg.Wait()
	testenv.Eventually(t, patience, func() bool {
		d.watches.mu.Lock()
		defer d.watches.mu.Unlock()
		return d.watches.watchers == 0 && len(d.watches.topics) == 0 && hints.followers() == 0
	}, "everything to be forgotten")
}
