package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// slowReader is a response writer that calls piece for each part of the response.
type slowReader struct {
	header http.Header
	piece  func(p []byte)
}

func (r *slowReader) Header() http.Header         { return r.header }
func (r *slowReader) WriteHeader(int)             {}
func (r *slowReader) Write(p []byte) (int, error) { r.piece(p); return len(p), nil }

// chunkCounter counts how often each chunk is read.
type chunkCounter struct {
	Store
	mu   sync.Mutex
	read []int
}

func (s *chunkCounter) Chunk(ctx context.Context, id procfleet.TaskID, n int) ([]procfleet.ItemResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[n]++
	return s.Store.Chunk(ctx, id, n)
}

func (s *chunkCounter) chunks() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.read {
		n += times
	}
	return n
}

// TestAResultMapIsStreamedInOnePass verifies that every call that returns all results of a task reads
// each chunk once, and only a few chunks before it sends their results.
func TestAResultMapIsStreamedInOnePass(t *testing.T) {
	t.Parallel()
	const (
		chunks = 40
		// ahead is the maximum number of chunks that were read and not sent: the response is
		// buffered in parts of 64 KiB, which is four chunks without results, and two more chunks
		// are read ahead.
		ahead = 4 + 2
	)
	store := &chunkCounter{Store: openStore(t)}
	dispatcher, err := New(testConfig(t), store, &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	hosts := make([]string, chunks*procfleet.ChunkItems)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
	}
	server := httptest.NewServer(dispatcher.Handler())
	defer server.Close()
	id := esbID("task_id")((&testServer{t: t, url: server.URL}).call(http.MethodPost, v2Path, gseBody(2, hosts...)))
	calls := 0
	for _, d := range dialect.All() {
		for _, call := range d.Calls {
			if _, all := call.Endpoint.(dialect.Outcomes); !all {
				continue
			}
			calls++
			store.read = make([]int, chunks)
			items := 0
			r := httptest.NewRequest(http.MethodPost, call.Paths[0], strings.NewReader(pollBody(id)))
			dispatcher.Handler().ServeHTTP(&slowReader{header: http.Header{}, piece: func(p []byte) {
				if read := store.chunks(); read > items/procfleet.ChunkItems+ahead {
					t.Errorf("%s: %d chunks were read when %d entries had been sent", call.Name, read, items)
				}
				items += strings.Count(string(p), `"handling","content"`)
			}}, r)
			if items < len(hosts)-chunks { // an entry that is split between two parts is not counted
				t.Errorf("%s: %d entries, want %d", call.Name, items, len(hosts))
			}
			for n, times := range store.read {
				if times != 1 {
					t.Errorf("%s read chunk %d %d times", call.Name, n, times)
				}
			}
		}
	}
	if calls < 3 {
		t.Errorf("only %d calls answer with all results", calls)
	}
}

// pollBody returns a request for all results of a task that is valid in every dialect.
func pollBody(id any) string {
	return fmt.Sprintf(`{"bk_biz_id":1,"task_id":%[1]q,"bk_gse_taskid":%[1]q,"params":{"bk_gse_taskid":%[1]q}}`, id)
}

// If a request is canceled while its response is being sent, the response must end as incomplete JSON,
// so that no client reads it as the whole result map.
func TestAResultMapThatIsCutDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	dispatcher, err := New(testConfig(t), openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	hosts := make([]string, 40*procfleet.ChunkItems)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
	}
	server := httptest.NewServer(dispatcher.Handler())
	defer server.Close()
	id := esbID("task_id")((&testServer{t: t, url: server.URL}).call(http.MethodPost, v2Path, gseBody(2, hosts...)))
	for _, d := range dialect.All() {
		for _, call := range d.Calls {
			if _, all := call.Endpoint.(dialect.Outcomes); !all {
				continue
			}
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, call.Paths[0], strings.NewReader(pollBody(id)))
			func() {
				defer func() {
					if cause := recover(); cause != http.ErrAbortHandler { //nolint:errorlint // it is what net/http compares with
						t.Errorf("%s: ended with %v", call.Name, cause)
					}
				}()
				dispatcher.Handler().ServeHTTP(&slowReader{header: http.Header{}, piece: func([]byte) { cancel() }}, r)
			}()
			cancel()
		}
	}
}
