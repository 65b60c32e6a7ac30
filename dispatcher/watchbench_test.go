package dispatcher

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/testenv"
)

// nullWriter is a response writer that discards everything.
type nullWriter struct{ header http.Header }

func (w nullWriter) Header() http.Header         { return w.header }
func (w nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w nullWriter) WriteHeader(int)             {}
func (w nullWriter) Flush()                      {}

// BenchmarkAChangeSeenByWatchers measures one change of a task: hint, read, encoding, and the write to
// each watcher, without sockets. B/watcher is the memory of a watcher without its connection.
func BenchmarkAChangeSeenByWatchers(b *testing.B) {
	for _, watchers := range []int{1, 100, 1000, 10_000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) { benchmarkChange(b, watchers) })
	}
}

func benchmarkChange(b *testing.B, watchers int) {
	b.Helper()
	store, hints := &scriptedStore{task: aTask(0)}, &scriptedHints{}
	d, err := New(Config{Log: testenv.Silent(), Hints: hints}, store, &fakeQueue{})
	if err != nil {
		b.Fatal(err)
	}
	h := d.watches
	h.timing.gap, h.timing.endGap, h.timing.poll = 0, 0, time.Hour
	encode := watchCall(b).Encode
	before := memory()
	var running sync.WaitGroup
	seen := make(chan struct{}, watchers)
	for range watchers {
		t, err := h.join(topicKey{"native.events", aTask(0).ID}, encode)
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() {
			defer h.leave(t)
			if _, err := t.fresh(b.Context()); err != nil {
				b.Error(err)
			}
			w := countingWriter{nullWriter{http.Header{}}, seen}
			s := &stream{w: w, control: http.NewResponseController(w), timeout: time.Second}
			s.begin()
			if err := s.run(b.Context(), t); err != nil {
				b.Error(err)
			}
		})
	}
	awaitSeen(seen, watchers)
	kept := float64(memory()-before) / float64(watchers)
	for hints.followers() == 0 {
		runtime.Gosched()
	}
	n := 0
	for b.Loop() {
		n++
		store.set(aTask(1 + n%8))
		hints.hint(false)
		awaitSeen(seen, watchers)
	}
	b.ReportMetric(kept, "B/watcher")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(watchers), "ns/watcher")
	h.stop()
	running.Wait()
	h.wait()
}

func watchCall(b *testing.B) dialect.Watch {
	b.Helper()
	for _, d := range dialect.All() {
		for _, call := range d.Calls {
			if use, ok := call.Endpoint.(dialect.Watch); ok {
				return use
			}
		}
	}
	b.Fatal("no call watches")
	return dialect.Watch{}
}

func awaitSeen(seen <-chan struct{}, n int) {
	for range n {
		<-seen
	}
}

// countingWriter sends to seen for each event that is written.
type countingWriter struct {
	nullWriter
	seen chan<- struct{}
}

func (w countingWriter) Write(p []byte) (int, error) {
	if len(p) > 100 { // neither the beginning of the stream nor the name of an event
		w.seen <- struct{}{}
	}
	return len(p), nil
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
