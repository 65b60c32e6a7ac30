package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// FuzzAgentsAnswer answers a command, and a request to send results again, with
// anything on any subject. Nothing is noted of an item that was not asked for,
// or twice of one that was.
func FuzzAgentsAnswer(f *testing.F) {
	f.Add("1-0-1", []byte(`{"type":"procfleet.agent.v1.reply","instance":"i","items":[{"item":10},{"item":11,"result":{"item":11,"code":0,"reason":"succeeded"}}]}`))
	f.Add("1-0-1", []byte(`{"type":"procfleet.agent.v1.reply","instance":"i","items":[{"item":10},{"item":10}]}`))
	f.Add("1-0-1", []byte(`{"type":"procfleet.agent.v1.reply","refused":"expired","message":"m"}`))
	f.Add("1-0-1", []byte(`{"type":"procfleet.agent.v1.reply","refused":"host"}`))
	f.Add("1-0-0", []byte(`{"type":"procfleet.agent.v1.resend_reply","unknown":[10,12],"running":[11]}`))
	f.Add("1-zik0zj-zik0zj", []byte("\xff"))
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		f.Fatal(err)
	}
	timing := Timing{}.withDefaults()
	m, err := newMetrics(metricnoop.Meter{}, newParkingRoom(1))
	if err != nil {
		f.Fatal(err)
	}
	b := &believer{keys: func() *fleetkey.Ring { return nil }, log: testenv.Silent()}
	d := &deliverer{believer: b, clock: &clock{look: look{local: time.Now(), store: time.Now()}}, metrics: m, tracer: tracenoop.Tracer{}, timing: &timing}
	f.Fuzz(func(t *testing.T, token string, data []byte) {
		asker := newAsker(nil, func() {})
		asking := asker.begin(1)
		asker.route(&nats.Msg{Subject: asker.prefix + token, Data: data})
		if len(asking.answers) == 0 {
			return
		}
		a := <-asking.answers

		sh := &shard{sweeper: &sweeper{believer: b}}
		reply, _ := sh.readResendReply(asking, &a, []*itemsOfHost{{host: host, items: []int{10, 11}}})
		for _, item := range append(reply.unknown, reply.known...) {
			if item != 10 && item != 11 {
				t.Errorf("item %d was not asked for", item)
			}
		}

		h := newHostAsk(0, host)
		h.todo, h.part, h.try = []int{0, 1}, 2, 1
		begun := &taskstore.Begun{Chunk: procfleet.Chunk{First: 10, Items: make([]procfleet.Item, 2)}}
		dl := &delivery{
			deliverer: d, begun: begun, trace: newAskTrace(t.Context(), d.tracer, d.agents, &begun.Task), asking: asking,
			hosts: []*hostAsk{h}, open: 1, log: testenv.Silent(),
		}
		dl.answered(a)
		told := slices.Clone(dl.accepted)
		for i := range dl.results {
			told = append(told, dl.results[i].Item)
		}
		slices.Sort(told)
		if len(told) > 2 || len(slices.Compact(slices.Clone(told))) != len(told) || slices.ContainsFunc(told, func(item int) bool { return item != 10 && item != 11 }) {
			t.Errorf("told of items %v, asked for 10 and 11", told)
		}
	})
}
