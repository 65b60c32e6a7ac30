package simulate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	cloud = 3
	task  = "GSETASK:20260102030405:6"
)

// start runs a fleet until the end of the test and waits until the fleet is ready.
func start(tb testing.TB, env *testenv.NATS, agents int, latency time.Duration) {
	tb.Helper()
	startOn(tb, env, agents, 2, latency)
}

func startOn(tb testing.TB, env *testenv.NATS, agents, connections int, latency time.Duration) {
	tb.Helper()
	startWith(tb, simulate.Config{Agents: agents, Connections: connections, Cloud: cloud, Latency: latency, URL: env.URL})
}

func startWith(tb testing.TB, cfg simulate.Config) {
	tb.Helper()
	ready := make(chan struct{})
	cfg.Log, cfg.Ready = testenv.Silent(), func() { close(ready) }
	fleet, err := simulate.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("fleet: %v", err)
		}
	})
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		tb.Fatal("not ready")
	}
}

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func host(i int) string { return fmt.Sprintf("%d:%s", cloud, address(i)) }

func command(i, item int, action string) *agentproto.Command {
	return &agentproto.Command{
		Header: agentproto.Header{Type: agentproto.TypeCommand, ID: "1", Sent: time.Now()},
		Task:   task, Lane: "s", Host: host(i),
		AcceptBefore: time.Now().Add(10 * time.Second),
		Items:        []agentproto.CommandItem{{Item: item, Action: action}},
		Specs:        []json.RawMessage{json.RawMessage(`{"key":"a:b","proc_name":"sleep","start_cmd":"sleep 86400 &","process_type":"resident"}`)},
	}
}

func encode(tb testing.TB, c *agentproto.Command) []byte {
	tb.Helper()
	data, err := agentproto.Encode(c)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func ask(t *testing.T, env *testenv.NATS, i int, data []byte) *nats.Msg {
	t.Helper()
	msg, err := env.Conn.Request(agentproto.AgentSubject(cloud, address(i)), data, 10*time.Second)
	if err != nil {
		t.Fatalf("agent %d: %v", i, err)
	}
	return msg
}

func askCommand(t *testing.T, env *testenv.NATS, i int, c *agentproto.Command) agentproto.Reply {
	t.Helper()
	var reply agentproto.Reply
	if err := agentproto.Decode(ask(t, env, i, encode(t, c)).Data, agentproto.TypeReply, &reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// results receives the results that agents send to workers.
type results struct {
	t   *testing.T
	sub *nats.Subscription
}

func hearResults(t *testing.T, env *testenv.NATS) results {
	t.Helper()
	sub, err := env.Conn.SubscribeSync("procfleet.result.*." + strconv.Itoa(cloud))
	if err == nil {
		err = env.Conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return results{t, sub}
}

func (r results) next() (*nats.Msg, agentproto.Results) {
	r.t.Helper()
	msg, err := r.sub.NextMsg(30 * time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	var got agentproto.Results
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &got); err != nil {
		r.t.Fatal(err)
	}
	if !agentproto.ToAgent(msg.Reply) {
		r.t.Errorf("the results request no receipt: %s", msg.Data)
	}
	return msg, got
}

// stored receives the next results, replies with a receipt for all of them, and returns them.
func (r results) stored() agentproto.Results {
	r.t.Helper()
	msg, got := r.next()
	receipt := agentproto.Receipt{Header: agentproto.Header{Type: agentproto.TypeReceipt, ID: "w"}, Task: got.Task}
	for _, result := range got.Results {
		receipt.Stored = append(receipt.Stored, result.Item)
	}
	r.reply(msg, &receipt)
	return got
}

func (r results) reply(msg *nats.Msg, receipt *agentproto.Receipt) {
	r.t.Helper()
	data, err := agentproto.Encode(receipt)
	if err == nil {
		err = msg.Respond(data)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestACommandIsAcceptedAndSucceeds(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	start(t, env, 300, 0)
	for _, i := range []int{0, 255, 299} {
		reply := askCommand(t, env, i, command(i, i, agentproto.ActionStart))
		if reply.Refused != "" || len(reply.Items) != 1 || reply.Items[0].Item != i || reply.Items[0].Result != nil {
			t.Fatalf("reply %+v", reply)
		}
		got := heard.stored()
		if got.Host != host(i) || got.Instance != reply.Instance || len(got.Results) != 1 {
			t.Fatalf("results %+v", got)
		}
		if r := got.Results[0]; r.Item != i || r.Reason != agentproto.ReasonSucceeded || r.Message != "success" || r.Status == nil || !r.Status.Running {
			t.Errorf("result %+v", r)
		}
	}
}

func TestBeyondTheFleetNobodyAnswers(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	start(t, env, 10, 0)
	_, err := env.Conn.Request(agentproto.AgentSubject(cloud, address(10)), nil, 5*time.Second)
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("error %v, want no responders", err)
	}
}

func TestARepeatIsAnsweredWithTheResult(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	start(t, env, 2, 0)
	c := command(1, 7, agentproto.ActionStop)
	askCommand(t, env, 1, c)
	heard.stored()
	again := askCommand(t, env, 1, c)
	if len(again.Items) != 1 || again.Items[0].Result == nil || again.Items[0].Result.Code != agentproto.CodeSuccess {
		t.Errorf("repeat %+v, want the result", again)
	}
}

func TestAnUnknownActionIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	start(t, env, 2, 0)
	reply := askCommand(t, env, 1, command(1, 7, "explode"))
	if len(reply.Items) != 1 || reply.Items[0].Result == nil || reply.Items[0].Result.Code != agentproto.CodeUnknownAction {
		t.Errorf("reply %+v, want code %d", reply, agentproto.CodeUnknownAction)
	}
}

func TestResultsWaitForAWorker(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	start(t, env, 2, 0)
	askCommand(t, env, 1, command(1, 7, agentproto.ActionStart))
	heard := hearResults(t, env)
	if got := heard.stored(); len(got.Results) != 1 || got.Results[0].Item != 7 {
		t.Errorf("results %+v", got)
	}
}

func TestResultsOfWhichNoReceiptCameAreSentAgain(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	start(t, env, 2, 0)
	c := command(1, 7, agentproto.ActionStart)
	c.Items = append(c.Items, agentproto.CommandItem{Item: 8, Action: agentproto.ActionStop})
	askCommand(t, env, 1, c)
	header := agentproto.Header{Type: agentproto.TypeReceipt, ID: "w"}
	msg, first := heard.next()
	heard.reply(msg, &agentproto.Receipt{Header: header, RetryAfterMS: 200})
	msg, again := heard.next()
	if diff := cmp.Diff(first.Results, again.Results); diff != "" || first.ID != again.ID {
		t.Errorf("after a busy worker, message %s instead of %s: %s", again.ID, first.ID, diff)
	}
	if err := msg.Respond([]byte(`{"stream":"PROCFLEET_RESULTS","seq":1}`)); err != nil {
		t.Fatal(err)
	}
	msg, again = heard.next()
	if diff := cmp.Diff(first.Results, again.Results); diff != "" {
		t.Error("after the acknowledgement of a stream: ", diff)
	}
	heard.reply(msg, &agentproto.Receipt{Header: header, Task: task, Rejected: []int{7}})
	if got := heard.stored(); len(got.Results) != 1 || got.Results[0].Item != 8 {
		t.Errorf("after a receipt of item 7: %+v", got)
	}
}

func TestResultsAreSentAgainWhenAskedFor(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	start(t, env, 2, 0)
	askCommand(t, env, 1, command(1, 7, agentproto.ActionStart))
	heard.stored()
	data, err := agentproto.Encode(&agentproto.Resend{
		Header: agentproto.Header{Type: agentproto.TypeResend}, Task: task, Lane: "s", Host: host(1), Items: []int{7, 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	var reply agentproto.ResendReply
	if err := agentproto.Decode(ask(t, env, 1, data).Data, agentproto.TypeResendReply, &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.Sent) != 1 || reply.Sent[0] != 7 || len(reply.Unknown) != 1 || reply.Unknown[0] != 8 {
		t.Errorf("reply %+v", reply)
	}
	if got := heard.stored(); len(got.Results) != 1 || got.Results[0].Item != 7 {
		t.Errorf("results %+v", got)
	}
}

func TestTheLatencyPassesBeforeTheResult(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	const latency = 300 * time.Millisecond
	start(t, env, 1, latency)
	askCommand(t, env, 0, command(0, 0, agentproto.ActionStart))
	r := heard.stored().Results[0]
	if took := r.FinishedAt.Sub(r.AcceptedAt); took < latency {
		t.Errorf("took %v, less than %v", took, latency)
	}
}

func TestWhatAnAgentWouldRefuseIsRefused(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	start(t, env, 2, 0)
	for word, change := range map[string]func(*agentproto.Command){
		agentproto.RefusedHost:     func(c *agentproto.Command) { c.Host = "3:10.0.0.9" },
		agentproto.RefusedInstance: func(c *agentproto.Command) { c.Instance = "another" },
		agentproto.RefusedExpired:  func(c *agentproto.Command) { c.AcceptBefore = time.Now().Add(-time.Second) },
	} {
		c := command(1, 1, agentproto.ActionStart)
		change(c)
		if reply := askCommand(t, env, 1, c); reply.Refused != word {
			t.Errorf("reply %+v, want refused as %s", reply, word)
		}
	}
	var reply agentproto.Reply
	garbage := ask(t, env, 1, []byte(`{"type":"`+agentproto.TypeCommand+`","items":7}`))
	if err := agentproto.Decode(garbage.Data, agentproto.TypeReply, &reply); err != nil || reply.Refused != agentproto.RefusedUndecodable {
		t.Errorf("reply to garbage %+v, %v", reply, err)
	}
}

// BenchmarkCommand measures one command with reply and published result. Requester and
// NATS server run in the same process.
func BenchmarkCommand(b *testing.B) {
	env := testenv.StartNATS(b)
	const agents = 1000
	start(b, env, agents, 0)
	inbox := nats.NewInbox()
	replies := make(chan *nats.Msg, b.N) // NATS drops messages beyond the capacity
	if _, err := env.Conn.ChanSubscribe(inbox, replies); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		for i := range b.N {
			data := encode(b, command(i%agents, i, agentproto.ActionStatus))
			if err := env.Conn.PublishRequest(agentproto.AgentSubject(cloud, address(i%agents)), inbox, data); err != nil {
				b.Error(err)
			}
		}
	}()
	for range b.N {
		<-replies
	}
}
