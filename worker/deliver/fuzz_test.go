package deliver

import (
	"slices"
	"testing"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// unverifying returns a deliverer without keys, so that it verifies no reply, and a host.
func unverifying(f *testing.F) (*Deliverer, procfleet.Host) {
	f.Helper()
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		f.Fatal(err)
	}
	m, err := metrics.New(metricnoop.Meter{})
	if err != nil {
		f.Fatal(err)
	}
	link := &agentlink.Link{
		Auth:  &agentlink.Authenticator{Keys: func() *fleetkey.Ring { return nil }, Metrics: m, Log: testenv.Silent()},
		Clock: storecall.ClockAt(time.Now()), Metrics: m,
	}
	return &Deliverer{cfg: Config{Link: link, Timing: Timing{}.WithDefaults()}}, host
}

// FuzzReply replies to a command with arbitrary data. The worker must record nothing for an item
// that it did not request, and at most one result for each requested item.
func FuzzReply(f *testing.F) {
	f.Add(0, 1, []byte(`{"type":"procfleet.agent.v1.reply","instance":"i","items":[{"item":10},{"item":11,"result":{"item":11,"code":0,"reason":"succeeded"}}]}`))
	f.Add(0, 1, []byte(`{"type":"procfleet.agent.v1.reply","instance":"i","items":[{"item":10},{"item":10}]}`))
	f.Add(0, 1, []byte(`{"type":"procfleet.agent.v1.reply","refused":"expired","message":"m"}`))
	f.Add(0, 1, []byte(`{"type":"procfleet.agent.v1.reply","refused":"host"}`))
	f.Add(1<<30, 1<<30, []byte("\xff"))
	d, host := unverifying(f)
	f.Fuzz(func(t *testing.T, index, try int, data []byte) {
		if index < 0 || try < 0 {
			return // no reply subject has these
		}
		h := newHostRequest(0, host)
		h.todo, h.part, h.try = []int{0, 1}, 2, 1
		begun := &taskstore.Begun{Chunk: procfleet.Chunk{First: 10, Items: make([]procfleet.Item, 2)}}
		dl := &delivery{
			Deliverer: d, begun: begun, trace: newRequestTrace(t.Context(), tracenoop.Tracer{}, nil, &begun.Task),
			batch: agentlink.NewRequester(nil, func() {}).Begin(1), hosts: []*hostRequest{h}, open: 1, log: testenv.Silent(),
		}
		dl.handleReply(agentlink.Reply{Host: index, Try: try, Data: data})
		recorded := slices.Clone(dl.accepted)
		for i := range dl.results {
			recorded = append(recorded, dl.results[i].Item)
		}
		slices.Sort(recorded)
		if len(recorded) > 2 || len(slices.Compact(slices.Clone(recorded))) != len(recorded) || slices.ContainsFunc(recorded, func(item int) bool { return item != 10 && item != 11 }) {
			t.Errorf("items %v are recorded, requested were 10 and 11", recorded)
		}
	})
}

// FuzzCancelReply replies to a cancel with arbitrary data. The worker must record nothing for an
// item that it did not request, each item at most once, and nothing from a reinstalled agent.
func FuzzCancelReply(f *testing.F) {
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.cancel_reply","instance":"i","items":[{"item":10,"decision":"begun"},{"item":11,"decision":"tombstoned","result":{"item":12,"code":65535,"reason":"cancelled"}}]}`), true)
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.cancel_reply","instance":"i","items":[{"item":10},{"item":10},{"item":12}]}`), true)
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.cancel_reply","instance":"i","items":[{"item":10}]}`), false)
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.cancel_reply","refused":"stopping","message":"m"}`), true)
	f.Add(0, []byte(`{"type":"procfleet.agent.v1.reply","refused":"undecodable"}`), true)
	f.Add(1<<30, []byte("\xff"), true)
	d, host := unverifying(f)
	f.Fuzz(func(t *testing.T, index int, data []byte, same bool) {
		if index < 0 {
			return // no reply subject has this
		}
		begun := time.Now()
		presence := taskstore.Presence{Announcement: taskstore.Announcement{Host: host, Instance: "i"}, Since: begun.Add(-time.Minute)}
		if !same {
			presence.Since = begun.Add(time.Minute)
		}
		c := &cancellation{
			Deliverer: d, log: testenv.Silent(), batch: agentlink.NewRequester(nil, func() {}).Begin(1),
			begun: &taskstore.Begun{Chunk: procfleet.Chunk{First: 10, Items: make([]procfleet.Item, 2)}, FirstBegun: begun},
			hosts: []*cancelRequest{{host: host, items: []int{0, 1}}}, presences: []taskstore.Presence{presence},
		}
		c.handle(&agentlink.Reply{Host: index, Data: data})
		recorded := slices.Clone(c.decided)
		for i := range c.results {
			recorded = append(recorded, c.results[i].Item)
		}
		for _, i := range c.hosts[0].items {
			recorded = append(recorded, 10+i)
		}
		slices.Sort(recorded)
		if !slices.Equal(recorded, []int{10, 11}) || !same && len(c.hosts[0].items) != 2 {
			t.Errorf("items %v are recorded or open, requested were 10 and 11", recorded)
		}
	})
}
