package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// Poll is the benchmark of reads: counters, one page of results, and all results in each
// published format.
type Poll struct {
	Config
	Items   []int // sizes of the finished tasks, in items
	Samples int   // number of reads of counters and of a page; all results are read Runs times
}

// Validate reports all invalid settings.
func (p Poll) Validate() error {
	return errors.Join(p.Config.Validate(), atLeast("--samples", p.Samples, 1), checkSizes("--items", p.Items...))
}

// reading is one kind of read of one task.
type reading struct {
	what    string
	items   int // task size
	first   request
	pages   bool // further requests read the next pages
	samples int
	count   func(answer []byte) (int, error) // number of results in a response
	want    int                              // number of results in all responses

	bytes       int // total size of the responses
	peak        int // maximum resident memory of the dispatcher in bytes
	floor, took []time.Duration
}

// request is one HTTP request. Only POST requests have a body.
type request struct {
	method, path string
	body         []byte
}

// Run runs the benchmark.
func (p Poll) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, p.Config, func(l *lab) ([]*Table, error) {
		system, err := startSystem(ctx, l, fleet{agents: slices.Max(p.Items)})
		if err != nil {
			return nil, err
		}
		defer system.stop()
		mirror, err := openMirror(ctx, l)
		if err != nil {
			return nil, err
		}
		defer mirror.close()
		var readings []*reading
		for _, items := range p.Items {
			task, err := system.operate(ctx, manyHosts(items))
			if err != nil {
				return nil, fmt.Errorf("task of %d items: %w", items, err)
			}
			readings = append(readings, p.readings(task.id, items)...)
		}
		// Restart the dispatcher to exclude memory allocated by accepting the tasks.
		if err := system.freshDispatcher(ctx); err != nil {
			return nil, err
		}
		// Order rows by kind of read, then by task size.
		slices.SortStableFunc(readings, func(a, b *reading) int { return slices.Index(whats(), a.what) - slices.Index(whats(), b.what) })
		for _, r := range readings {
			if err := r.measure(ctx, system, mirror); err != nil {
				return nil, fmt.Errorf("%s of %d items: %w", r.what, r.items, err)
			}
		}
		return []*Table{pollTable(readings)}, nil
	})
}

// The kinds of reads.
const (
	counters = "counters"
	onePage  = "page of results"
	allPages = "all pages"
	gseMap   = "GSE result map"
	gseMapV2 = "GSE v2 result map"
	jobMap   = "Job result map"
)

func whats() []string { return []string{counters, onePage, allPages, gseMap, gseMapV2, jobMap} }

const pageItems = 1000

func (p Poll) readings(id procfleet.TaskID, items int) []*reading {
	path := "/v1/tasks/" + string(id)
	page := request{http.MethodGet, path + "/results?limit=" + strconv.Itoa(pageItems), nil}
	all := []*reading{
		{what: counters, samples: p.Samples, first: request{http.MethodGet, path, nil}, count: countSucceeded, want: items},
		{what: onePage, samples: p.Samples, first: page, count: countPage, want: min(items, pageItems)},
		{what: allPages, samples: p.Runs, first: page, pages: true, count: countPage, want: items},
	}
	for _, call := range []struct{ what, path, idField string }{
		{gseMap, "gse/get_proc_operate_result/", "task_id"},
		{gseMapV2, "gse/get_proc_operate_result_v2/", "task_id"},
		{jobMap, "job/get_proc_result/", "bk_gse_taskid"},
	} {
		all = append(all, &reading{
			what: call.what, samples: p.Runs, count: countMap, want: items,
			first: request{http.MethodPost, "/api/c/compapi/v2/" + call.path, []byte(fmt.Sprintf(
				`{"bk_app_code":"bench","bk_username":"bench","bk_biz_id":1,%q:%q}`, call.idField, id))},
		})
	}
	for _, r := range all {
		r.items = items
	}
	return all
}

func countSucceeded(answer []byte) (int, error) {
	var task struct {
		Counts procfleet.Counts `json:"counts"`
	}
	err := json.Unmarshal(answer, &task)
	return task.Counts[procfleet.StateSucceeded], err
}

// resultsPage is one page of results in the native API.
type resultsPage struct {
	Results []json.RawMessage `json:"results"`
	Next    string            `json:"next"`
}

func countPage(answer []byte) (int, error) {
	var page resultsPage
	err := json.Unmarshal(answer, &page)
	return len(page.Results), err
}

// countMap counts the entries of a result map, which is data.result in Job responses and
// data in GSE responses.
func countMap(answer []byte) (int, error) {
	var gse struct {
		Data map[string]json.RawMessage `json:"data"`
	}
	err := json.Unmarshal(answer, &gse)
	found := gse.Data
	if inner, there := found["result"]; there {
		found = nil
		err = json.Unmarshal(inner, &found)
	}
	return len(found), err
}

// check returns an error unless the responses have all results.
func (r *reading) check(answers [][]byte) error {
	found := 0
	for _, answer := range answers {
		n, err := r.count(answer)
		if err != nil {
			return err
		}
		found += n
	}
	if found != r.want {
		return fmt.Errorf("%d results, want %d", found, r.want)
	}
	return nil
}

// measure sends the requests alternately to the system and to the mirror of its responses,
// and discards the responses.
func (r *reading) measure(ctx context.Context, s *system, m *mirror) error {
	requests, answers, err := r.follow(s.wire)
	if err != nil {
		return err
	}
	if err := r.check(answers); err != nil {
		return err
	}
	mirrored := make([]request, len(answers))
	for i, answer := range answers {
		r.bytes += len(answer)
		mirrored[i] = request{http.MethodGet, "/" + strconv.Itoa(i), nil}
	}
	if err := m.hold(ctx, answers); err != nil {
		return err
	}
	forgetPeakRSS(s.lab.plant.child(dispatcher).pid())
	for range r.samples {
		floor, err := timed(m.wire, mirrored)
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		took, err := timed(s.wire, requests)
		if err != nil {
			return err
		}
		r.floor, r.took = append(r.floor, floor), append(r.took, took)
	}
	r.peak = s.lab.plant.peak(dispatcher)
	return nil
}

// follow sends the requests one after another, from r.first to the last.
func (r *reading) follow(w *wire) (requests []request, answers [][]byte, err error) {
	for next := r.first; ; {
		var answer []byte
		err := w.call(next.method, next.path, "", next.body, func(body io.Reader) (err error) {
			answer, err = io.ReadAll(body)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		requests, answers = append(requests, next), append(answers, answer)
		var page resultsPage
		if r.pages {
			if err := json.Unmarshal(answer, &page); err != nil {
				return nil, nil, err
			}
		}
		if page.Next == "" {
			return requests, answers, nil
		}
		next.path = r.first.path + "&cursor=" + url.QueryEscape(page.Next)
	}
}

// timed sends the requests one after another and returns the total duration.
func timed(w *wire, requests []request) (time.Duration, error) {
	begun := time.Now()
	for _, r := range requests {
		err := w.call(r.method, r.path, "", r.body, func(answer io.Reader) error {
			_, err := io.Copy(io.Discard, answer)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// mirror is the floor of reads: an HTTP server that reads each response, with the same
// number of bytes as from the system, by one GET from Redis.
type mirror struct {
	lab    *lab
	server *http.Server
	wire   *wire
}

const mirrorKey = "pf-bench:mirror"

func openMirror(ctx context.Context, l *lab) (*mirror, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &mirror{lab: l}
	m.server = &http.Server{Handler: http.HandlerFunc(m.answer), ReadHeaderTimeout: patience}
	go func() { _ = m.server.Serve(listener) }() // until close
	if m.wire, err = dial(ctx, listener.Addr().String()); err != nil {
		_ = m.server.Close()
		return nil, err
	}
	return m, nil
}

// hold stores the responses in Redis. The path of a response is its index.
func (m *mirror) hold(ctx context.Context, answers [][]byte) error {
	for i, answer := range answers {
		if err := m.lab.redis.Set(ctx, mirrorKey+"/"+strconv.Itoa(i), answer, bareExpiry).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (m *mirror) answer(w http.ResponseWriter, r *http.Request) {
	held, err := m.lab.redis.Get(r.Context(), mirrorKey+r.URL.Path).Bytes()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(held) //nolint:gosec // the only client is this benchmark, which detects errors
}

func (m *mirror) close() {
	m.wire.close()
	_ = m.server.Close() // no open requests
}

const (
	growthOfCounters = 1.5  // maximum ratio to reading the counters of the smallest task
	pageGoal         = 8.0  // maximum milliseconds for a page
	mapGoal          = 60.0 // maximum milliseconds for mapItems results in any format
	mapItems         = 10000
)

func pollTable(readings []*reading) *Table {
	t := &Table{
		Title:   "Poll: reading a finished task, ms",
		Columns: []string{"what", "items", "KiB", "samples", "floor", "median", "p99", "ratio", "goal", "met", "dispatcher MiB"},
		Notes: []string{
			"The floor is one HTTP round trip per response, in which a bare server reads as many bytes from Redis with one GET and sends them. " +
				"Counters are GET /v1/tasks/{id}, pages are up to 1,000 results of GET /v1/tasks/{id}/results, and the maps are the responses of " +
				"get_proc_operate_result, get_proc_operate_result_v2 and Job's get_proc_result.",
			"The dispatcher was restarted before the reads; MiB is its maximum resident memory during the reads.",
		},
	}
	for _, r := range readings {
		floor, took := quantile(r.floor, 0.5), quantile(r.took, 0.5)
		goal, met := "", ""
		switch {
		case r.what == counters && r != readings[0]:
			goal, met = atMost(ratio(took, quantile(readings[0].took, 0.5)), growthOfCounters, fmt.Sprintf(" × of %s", thousands(readings[0].items)))
		case r.what == onePage && r.items >= pageItems:
			goal, met = atMost(ms(took), pageGoal, " ms")
		case r.items == mapItems && slices.Contains([]string{gseMap, gseMapV2, jobMap}, r.what):
			goal, met = atMost(ms(took), mapGoal, " ms")
		}
		t.add(r.what, r.items, float64(r.bytes)/1024, len(r.took), ms(floor), ms(took), ms(quantile(r.took, 0.99)), ratio(took, floor), goal, met, mib(r.peak))
	}
	return t
}
