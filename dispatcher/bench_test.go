package dispatcher

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

func tenThousand(b *testing.B) []procfleet.Operation {
	b.Helper()
	o := procfleet.Operation{Action: procfleet.ActionStatus, Process: spec("web")}
	for i := range 10_000 {
		o.Targets = append(o.Targets, procfleet.Target{Host: host(b, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))})
	}
	return []procfleet.Operation{o}
}

func BenchmarkCutTenThousandHosts(b *testing.B) {
	ops := tenThousand(b)
	for b.Loop() {
		mustCut(b, ops)
	}
}

// BenchmarkResultMapOfTenThousandHosts renders a finished task, without the
// store that it is read from.
func BenchmarkResultMapOfTenThousandHosts(b *testing.B) {
	p := mustCut(b, tenThousand(b))
	now := time.Now()
	var chunks [][]procfleet.ItemResult
	for n := range p.chunks {
		chunk := &p.chunks[n]
		var items []procfleet.ItemResult
		for i, it := range chunk.Items {
			items = append(items, procfleet.ItemResult{
				Index: chunk.First + i, Item: it, Spec: chunk.Spec(i), State: procfleet.StateSucceeded,
				Result: procfleet.Result{
					Reason: procfleet.ReasonSucceeded, Message: "success", Rank: procfleet.RankAgent,
					Status: &procfleet.ProcessStatus{At: now, Running: true, PID: 4437, Command: "nginx", StartedAt: now},
				},
			})
		}
		chunks = append(chunks, items)
	}
	encode := resultCall(b)
	var all iter.Seq2[[]procfleet.ItemResult, error] = func(yield func([]procfleet.ItemResult, error) bool) {
		for _, chunk := range chunks {
			if !yield(chunk, nil) {
				return
			}
		}
	}
	var size bytes.Buffer
	if err := encode(&size, "id", all); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(size.Len()))
	for b.Loop() {
		if err := encode(io.Discard, "id", all); err != nil {
			b.Fatal(err)
		}
	}
}

func resultCall(b *testing.B) func(io.Writer, string, iter.Seq2[[]procfleet.ItemResult, error]) error {
	b.Helper()
	for _, d := range dialect.All() {
		for _, call := range d.Calls {
			if use, ok := call.Endpoint.(dialect.Outcomes); ok {
				return use.Encode
			}
		}
	}
	b.Fatal("no call answers with results")
	return nil
}

// BenchmarkAcceptOneHost is one small request from its header to its answer,
// without the store and the queue.
func BenchmarkAcceptOneHost(b *testing.B) {
	d, err := New(Config{Log: testenv.Silent()}, nullStore{}, &fakeQueue{})
	if err != nil {
		b.Fatal(err)
	}
	body := gseBody(2, "10.0.0.1")
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, v2Path, strings.NewReader(body))
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}

// nullStore accepts every write and stores nothing.
type nullStore struct{ Store }

func (nullStore) Create(_ context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	return procfleet.Task{ID: "GSETASK:20261121053522:123456", Items: len(d.Chunks[0].Items)}, true, nil
}

func (nullStore) Dispatched(context.Context, procfleet.TaskID, []uint64) error { return nil }
