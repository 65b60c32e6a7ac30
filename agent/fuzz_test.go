package agent

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// obedient is an engine and a ledger that record the operations that they receive.
type obedient struct {
	Engine
	applied   []agentproto.Settings
	received  []journal.Op
	submitted []journal.Op
}

func (o *obedient) Apply(s agentproto.Settings) { o.applied = append(o.applied, s) }
func (o *obedient) Submit(op journal.Op)        { o.submitted = append(o.submitted, op) }

func (o *obedient) Receive(ops []journal.Op) ([]journal.Admission, error) {
	o.received = append(o.received, ops...)
	return make([]journal.Admission, len(ops)), nil
}

func (o *obedient) Cancel(all []journal.Cancellation) ([]journal.Decision, error) {
	decisions := make([]journal.Decision, len(all))
	for i, c := range all {
		decisions[i].Kind = agentproto.DecisionBegun
		if c.Item%2 == 0 {
			decisions[i] = journal.Decision{Kind: agentproto.DecisionTombstoned, Result: &c.Result}
		}
	}
	return decisions, nil
}

func (o *obedient) Interrupt(string, journal.ID) {}

func (o *obedient) Output(operate.OutputQuery) (operate.OutputPage, error) {
	return operate.OutputPage{}, nil
}

func (o *obedient) Finish(journal.ID, agentproto.Result) error { return nil }

func (o *obedient) Acknowledge([]journal.ID) error { return nil }

func (o *obedient) Result(id journal.ID) (r agentproto.Result, open, known bool) {
	return r, id.Item%3 == 1, id.Item%3 != 0
}

// FuzzIntake sends arbitrary messages to an agent. Each operation that the agent begins must be in the
// ledger already, be for this host, and be complete.
func FuzzIntake(f *testing.F) {
	const command = `{"type":"procfleet.agent.v1.command","task":"GSETASK:20260101000000:1","lane":"s","host":"0:10.0.0.1","accept_before":"2126-01-01T00:00:00Z",` +
		`"items":[{"item":0,"spec":0,"action":"start","fence":1},{"item":0},{"item":1,"spec":1},{"item":2,"spec":9}],"specs":[{"key":"a:b"},[]]}`
	f.Add([]byte(strings.Replace(command, "0:10.0.0.1", "0:10.0.0.2", 1)), "")
	f.Add([]byte(command), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add([]byte(`{"type":"procfleet.agent.v1.resend","task":"GSETASK:20260101000000:1","lane":"s","host":"0:10.0.0.1","items":[0,1,2,-1]}`), "")
	f.Add([]byte(`{"type":"procfleet.agent.v1.cancel","task":"GSETASK:20260101000000:1","lane":"s","host":"0:10.0.0.1","interrupt":true,"items":[{"item":0},{"item":1,"key":"a:b"}]}`), "")
	f.Add([]byte(`{"type":"procfleet.agent.v1.settings_changed"}`), "")
	f.Add([]byte(`{"type":"x"}`), "00-\xff")
	self := identity{authenticator: &authenticator{keys: func() *fleetkey.Host { return nil }, log: testenv.Silent()}, host: "0:10.0.0.1", instance: "i"}
	f.Fuzz(func(t *testing.T, data []byte, trace string) {
		o := &obedient{}
		servers := newClock()
		servers.observe(exchange{servers.read(), servers.read()}, time.Now())
		requests := &requester{identity: self, clock: servers}
		in := intake{
			requester: requests, ledger: o, engine: o, reporter: newReporter(requests, nil, func(string) {}), prompt: newPrompt(promptWithin),
			settings: &settingsClient{due: make(chan struct{}, 1)},
			sync:     func(context.Context) bool { return true }, resume: func() {}, crash: func(string) {},
		}
		in.handle(t.Context(), []*nats.Msg{{Data: data, Header: nats.Header{"Traceparent": {trace}}}})
		if diff := cmp.Diff(o.received, o.submitted, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("not what was written down is begun:\n%s", diff)
		}
		var c agentproto.Command
		if len(o.submitted) > 0 && (agentproto.Decode(data, agentproto.TypeCommand, &c) != nil || c.Host != self.host) {
			t.Errorf("a message to %q has this host begin something", c.Host)
		}
		seen := map[journal.ID]bool{}
		for _, op := range o.submitted {
			if op.Task == "" || op.Spec.Key == "" || agentproto.ValidLane(op.Lane) != nil || seen[op.ID] {
				t.Errorf("operation %+v is begun", op)
			}
			seen[op.ID] = true
		}
	})
}

// FuzzSettingsReply replies to a request for settings with arbitrary data. After a restart the agent must
// apply the same settings as before it.
func FuzzSettingsReply(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.settings_reply","server_time":"2026-01-01T00:00:00Z","settings":{"freezes":[{"until":"2026-01-01T00:00:00Z"}],"groups":[{"namespace":"a"}]}}`))
	f.Add([]byte(`{"type":"procfleet.agent.v1.settings_reply","error":"no"}`))
	file := filepath.Join(f.TempDir(), "settings.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		before := &obedient{}
		workers := fakeWorkers(func(context.Context, *nats.Msg) (*nats.Msg, error) { return &nats.Msg{Data: data}, nil }).requester(t, nil)
		k := &settingsClient{requester: workers, engine: before, file: file}
		if k.fetch(t.Context()); len(k.stored) == 0 {
			return // refused, or with a moment outside of what RFC 3339 can write
		}
		after := &obedient{}
		again := &settingsClient{requester: workers, engine: after, file: file}
		again.load()
		if diff := cmp.Diff(before.applied, after.applied, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("a restart makes other settings hold:\n%s", diff)
		}
	})
}
