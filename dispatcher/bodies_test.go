package dispatcher

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// stuckStore blocks Create until let is closed.
type stuckStore struct {
	Store
	let chan struct{}

	mu      sync.Mutex
	waiting int
}

func (s *stuckStore) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	s.mu.Lock()
	s.waiting++
	s.mu.Unlock()
	<-s.let
	return s.Store.Create(ctx, d)
}

// TestWhatIsWorkedOnIsBounded verifies that, while the store blocks, the number of request bodies
// in memory is limited in every dialect. Further requests are rejected with a request to retry,
// and the requests in progress succeed afterwards.
func TestWhatIsWorkedOnIsBounded(t *testing.T) {
	t.Parallel()
	const callers, taken, size = 12, 3, 300 << 10
	for name, shape := range map[string]struct {
		path, body string
		accepted   func(*answer) bool
	}{
		"native": {"/v1/tasks", nativeBody("0:10.0.0.1"), func(a *answer) bool { return a.status == http.StatusCreated }},
		"Job":    {"/c/compapi/v2/job/operate_process/", jobBody("10.0.0.1"), func(a *answer) bool { return a.body["result"] == true }},
		"GSE":    {"/c/compapi/v2/gse/operate_proc_v2/", gseBody(2, "10.0.0.1"), func(a *answer) bool { return a.body["result"] == true }},
		"V2":     {v2Path, gseBody(2, "10.0.0.1"), func(a *answer) bool { return a.body["result"] == true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.Timeouts.Accept = time.Minute // on a busy machine the rejections may be slow
			cfg.Limits.SmallBodies = taken * (size + size/10)
			store := &stuckStore{Store: openStore(t), let: make(chan struct{})}
			d := startServer(t, cfg, store, &fakeQueue{})
			body := shape.body + strings.Repeat(" ", size-len(shape.body))
			answers := make(chan answer, callers)
			for range callers {
				go func() { answers <- d.call(http.MethodPost, shape.path, body) }()
			}
			for range callers - taken {
				a := <-answers
				if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.text, "nothing was done") {
					t.Errorf("a caller too many: %d %v %s", a.status, a.header, a.text)
				}
			}
			store.mu.Lock()
			waiting := store.waiting
			store.mu.Unlock()
			if waiting != taken {
				t.Errorf("%d bodies are worked on, want %d", waiting, taken)
			}
			close(store.let)
			for range taken {
				if a := <-answers; !shape.accepted(&a) {
					t.Errorf("a caller who was taken: %d %s", a.status, a.text)
				}
			}
			if a := d.call(http.MethodPost, shape.path, body); !shape.accepted(&a) {
				t.Errorf("a caller afterwards: %d %s", a.status, a.text)
			}
			if n := d.tasks(); n != taken+1 {
				t.Errorf("%d tasks, want %d", n, taken+1)
			}
		})
	}
}
