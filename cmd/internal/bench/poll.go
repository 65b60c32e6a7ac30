package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// Poll measures reading: counters, a page of results, all results.
type Poll struct {
	Config
	Items   []int // sizes of the finished tasks that are read
	Samples int   // of each small read; whole maps are read Runs times
}

// Validate reports everything that is wrong.
func (p Poll) Validate() error {
	return errors.Join(p.Config.Validate(), atLeast("--samples", p.Samples, 1), checkSizes("--items", p.Items))
}

// reading is one kind of read of one task.
type reading struct {
	what    string
	items   int // of the task
	method  string
	path    string
	body    []byte
	samples int
	check   func(answer []byte) error

	bytes       int // of the answer
	floor, took []time.Duration
}

// Run measures.
func (p Poll) Run(ctx context.Context) (Report, error) {
	var report Report
	err := inLab(ctx, p.Config, func(l *lab) error {
		system, err := startSystem(ctx, l, fleet{agents: slices.Max(p.Items)})
		if err != nil {
			return err
		}
		defer system.stop()
		mirror, err := openMirror(ctx, l)
		if err != nil {
			return err
		}
		defer mirror.close()
		t := newPollTable()
		var readings []*reading
		for _, items := range p.Items {
			task, err := system.operate(ctx, manyHosts(items))
			if err != nil {
				return fmt.Errorf("task of %d items: %w", items, err)
			}
			readings = append(readings, p.readings(task.id, items)...)
		}
		// Like beside like, whatever the size of the task.
		slices.SortStableFunc(readings, func(a, b *reading) int { return slices.Index(whats(), a.what) - slices.Index(whats(), b.what) })
		for _, r := range readings {
			if err := r.measure(ctx, system.wire, mirror); err != nil {
				return fmt.Errorf("%s of %d items: %w", r.what, r.items, err)
			}
		}
		addReadings(t, readings)
		t.Notes = append(t.Notes, fmt.Sprintf("The dispatcher's memory was at most %s MiB.", text(float64(system.peak(dispatcher))/(1<<20))))
		report = Report{Machine: l.machine(ctx), Tables: []*Table{t}}
		return nil
	})
	return report, err
}

// What is read.
const (
	counters = "counters"
	onePage  = "page of results"
	wholeMap = "whole result map"
)

func whats() []string { return []string{counters, onePage, wholeMap} }

const pageItems = 1000

func (p Poll) readings(id procfleet.TaskID, items int) []*reading {
	path := "/v1/tasks/" + string(id)
	return []*reading{
		{what: counters, items: items, method: http.MethodGet, path: path, samples: p.Samples, check: func(answer []byte) error {
			var task struct {
				Counts procfleet.Counts `json:"counts"`
			}
			return errors.Join(json.Unmarshal(answer, &task), expect(task.Counts[procfleet.StateSucceeded], items))
		}},
		{what: onePage, items: items, method: http.MethodGet, path: path + "/results?limit=" + strconv.Itoa(pageItems), samples: p.Samples, check: func(answer []byte) error {
			var page struct {
				Results []json.RawMessage `json:"results"`
			}
			return errors.Join(json.Unmarshal(answer, &page), expect(len(page.Results), min(items, pageItems)))
		}},
		{
			what: wholeMap, items: items, method: http.MethodPost, path: "/api/c/compapi/v2/gse/get_proc_operate_result/",
			body:    []byte(`{"bk_app_code":"bench","bk_username":"bench","task_id":"` + string(id) + `"}`),
			samples: p.Runs, check: func(answer []byte) error {
				var outcome struct {
					Data map[string]json.RawMessage `json:"data"`
				}
				return errors.Join(json.Unmarshal(answer, &outcome), expect(len(outcome.Data), items))
			},
		},
	}
}

func expect(got, want int) error {
	if got != want {
		return fmt.Errorf("%d results, want %d", got, want)
	}
	return nil
}

// measure reads alternately from the system and from the mirror of its
// answer, and throws the bytes away as they come.
func (r *reading) measure(ctx context.Context, w *wire, m *mirror) error {
	var answer []byte
	err := w.call(r.method, r.path, "", r.body, func(body io.Reader) (err error) {
		answer, err = io.ReadAll(body)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.check(answer); err != nil {
		return err
	}
	r.bytes = len(answer)
	if err := m.hold(ctx, answer); err != nil {
		return err
	}
	for range r.samples {
		floor, err := timed(m.wire, http.MethodGet, "/", nil)
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		took, err := timed(w, r.method, r.path, r.body)
		if err != nil {
			return err
		}
		r.floor, r.took = append(r.floor, floor), append(r.took, took)
	}
	return nil
}

func timed(w *wire, method, path string, body []byte) (time.Duration, error) {
	begun := time.Now()
	err := w.call(method, path, "", body, func(answer io.Reader) error {
		_, err := io.Copy(io.Discard, answer)
		return err
	})
	return time.Since(begun), err
}

// mirror is the floor of a read: a server that gets as many bytes with one
// GET from Redis and sends them.
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
	go func() { _ = m.server.Serve(listener) }() // ends with close
	if m.wire, err = dial(ctx, listener.Addr().String()); err != nil {
		_ = m.server.Close()
		return nil, err
	}
	return m, nil
}

func (m *mirror) hold(ctx context.Context, answer []byte) error {
	return m.lab.redis.Set(ctx, mirrorKey, answer, bareExpiry).Err()
}

func (m *mirror) answer(w http.ResponseWriter, r *http.Request) {
	held, err := m.lab.redis.Get(r.Context(), mirrorKey).Bytes()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(held) // the reader notices
}

func (m *mirror) close() {
	m.wire.close()
	_ = m.server.Close() // nothing is to be saved
}

const (
	growthOfCounters = 1.5  // times the counters of the smallest task: one read, whatever the size
	pageGoal         = 8.0  // ms
	mapGoal          = 60.0 // ms, of mapItems
	mapItems         = 10000
)

func newPollTable() *Table {
	return &Table{
		Title:   "Poll: reading a finished task, ms",
		Columns: []string{"what", "items", "KiB", "samples", "floor", "median", "p99", "ratio", "goal", "met"},
		Notes: []string{"The floor is one HTTP round trip in which a bare server gets as many bytes from Redis with one GET and sends them. " +
			"Counters are GET /v1/tasks/{id}, a page is of up to 1,000 results, the whole map is get_proc_operate_result."},
	}
}

func addReadings(t *Table, readings []*reading) {
	for _, r := range readings {
		floor, took := quantile(r.floor, 0.5), quantile(r.took, 0.5)
		goal, met := "", ""
		switch {
		case r.what == counters && r != readings[0]:
			goal, met = atMost(ratio(took, quantile(readings[0].took, 0.5)), growthOfCounters, fmt.Sprintf(" × of %s", thousands(readings[0].items)))
		case r.what == onePage && r.items >= pageItems:
			goal, met = atMost(ms(took), pageGoal, " ms")
		case r.what == wholeMap && r.items == mapItems:
			goal, met = atMost(ms(took), mapGoal, " ms")
		}
		t.add(r.what, r.items, float64(r.bytes)/1024, len(r.took), ms(floor), ms(took), ms(quantile(r.took, 0.99)), ratio(took, floor), goal, met)
	}
}
