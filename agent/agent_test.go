package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

const patience = time.Minute // for machines with much else to do

// fakeEngine finishes every operation at once, or when the test releases it.
type fakeEngine struct {
	cfg  operate.Config
	hold chan struct{} // nil: at once

	mu          sync.Mutex
	recovered   journal.Recovered
	submitted   []journal.Op
	interrupted []journal.ID
	processes   []agentproto.ManagedProcess
	applied     []agentproto.Settings
	atStart     int // how many were applied before Recover
	resumed     bool
	stopped     bool
	running     sync.WaitGroup
}

func (e *fakeEngine) Recover(r journal.Recovered) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recovered, e.atStart = r, len(e.applied)
}

func (e *fakeEngine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.resumed = true
}

func (e *fakeEngine) Apply(s agentproto.Settings) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.applied = append(e.applied, s)
}

func (e *fakeEngine) Submit(op journal.Op) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.submitted = append(e.submitted, op)
	hold := e.hold
	e.running.Go(func() {
		if hold != nil {
			<-hold
		}
		e.finish(op)
	})
}

func (e *fakeEngine) Output(operate.OutputQuery) (operate.OutputPage, error) {
	return operate.OutputPage{}, nil
}

func (e *fakeEngine) Interrupt(_ string, id journal.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interrupted = append(e.interrupted, id)
}

// waitFor waits until n operations were submitted; the agent replies to a command before that.
func (e *fakeEngine) waitFor(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return len(e.ops()) >= n }, "operations are submitted")
}

// holdNext makes the next operations wait.
func (e *fakeEngine) holdNext(hold chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = hold
}

func (e *fakeEngine) finish(op journal.Op) {
	r := agentproto.Result{
		Item: op.Item, Reason: agentproto.ReasonSucceeded, Message: "success",
		AcceptedAt: op.AcceptedAt, FinishedAt: time.Now().UTC(),
	}
	if strings.HasPrefix(op.Spec.StartCmd, "print ") {
		r.Warnings = []string{op.Spec.StartCmd}
	}
	if e.cfg.Ledger.Finish(op.ID, r) == nil {
		e.cfg.Finished(op, r)
	}
}

func (e *fakeEngine) Supervised() int { return 3 }

func (e *fakeEngine) Processes() []agentproto.ManagedProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.processes
}

func (e *fakeEngine) Overview() []local.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]local.Process, len(e.processes))
	for i, p := range e.processes {
		all[i] = local.Process{Key: p.Key}
	}
	return all
}

// manages sets the processes of the engine, and notifies the agent of the change.
func (e *fakeEngine) manages(ps ...agentproto.ManagedProcess) {
	e.mu.Lock()
	e.processes = ps
	e.mu.Unlock()
	e.cfg.Changed()
}

func (e *fakeEngine) Survey() operate.Survey {
	return operate.Survey{Supervised: map[string]int{"running": 2, "fatal": 1}}
}

// Stop waits for the operations that the test does not hold.
func (e *fakeEngine) Stop(context.Context) {
	e.mu.Lock()
	e.stopped = true
	wait := e.hold == nil
	e.mu.Unlock()
	if wait {
		e.running.Wait()
	}
}

func (e *fakeEngine) ops() []journal.Op {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]journal.Op(nil), e.submitted...)
}

// host is an agent on a host of its own, with the test's connection to it.
type host struct {
	t      *testing.T
	conn   *nats.Conn // the test's
	inbox  *inbox     // receives its results
	cfg    Config
	engine *fakeEngine
	stop   func() error
	prompt time.Duration // how long a reply waits for results; 0 = promptWithin
	timed  bool          // a worker reports the time, or the test needs none
}

var address = netip.MustParseAddr("10.0.0.1")

// newHost returns an agent that is not started yet, on a server of its own.
func newHost(t *testing.T) (*host, *testenv.NATS) {
	t.Helper()
	n := testenv.StartNATS(t)
	return &host{t: t, conn: n.Conn, inbox: newInbox(t, n.Conn), cfg: Config{
		Conn: testenv.Connect(t, n.URL), Addr: address, DataDir: t.TempDir(), Log: testenv.Log(t),
	}}, n
}

// start runs the agent and waits until it accepts commands. With hold, the engine finishes no operation
// before hold is closed.
func (h *host) start(hold chan struct{}) {
	h.t.Helper()
	h.tellTime()
	a, err := New(h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	a.prompt = cmp.Or(h.prompt, a.prompt)
	a.newEngine = func(c operate.Config) (Engine, error) {
		h.engine = &fakeEngine{cfg: c, hold: hold}
		return h.engine, nil
	}
	h.stop = runAgent(h.t, a)
	h.waitReachable()
}

// runAgent runs an agent until the test ends or stop is called. stop returns the error of Run.
func runAgent(t *testing.T, a *Agent) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return stop
}

func (h *host) waitReachable() {
	h.t.Helper()
	probe := &agentproto.Resend{Header: newHeader(agentproto.TypeResend), Lane: "s", Host: h.cfg.host()}
	testenv.Eventually(h.t, patience, func() bool {
		data, err := agentproto.Encode(probe)
		if err != nil {
			h.t.Fatal(err)
		}
		_, err = h.conn.Request(h.cfg.subject(), data, time.Second)
		return err == nil
	}, "agent takes commands")
}

// starts returns a command to start the processes of the given items.
func (h *host) starts(task string, items ...int) *agentproto.Command {
	c := &agentproto.Command{
		Header: newHeader(agentproto.TypeCommand), Task: task, Lane: "s", Host: h.cfg.host(),
		AcceptBefore: time.Now().Add(patience),
	}
	for i, item := range items {
		spec, err := json.Marshal(agentproto.Spec{Key: fmt.Sprintf("%s/%d", task, item), StartCmd: "true"})
		if err != nil {
			h.t.Fatal(err)
		}
		c.Specs = append(c.Specs, spec)
		c.Items = append(c.Items, agentproto.CommandItem{Item: item, Action: agentproto.ActionStart, Spec: i, Fence: 1})
	}
	return c
}

func (h *host) ask(m agentproto.Message, kind string, reply agentproto.Message) {
	h.t.Helper()
	data, err := agentproto.Encode(m)
	if err != nil {
		h.t.Fatal(err)
	}
	h.askRaw(data, kind, reply)
}

func (h *host) askRaw(data []byte, kind string, reply agentproto.Message) {
	h.t.Helper()
	msg, err := h.conn.Request(h.cfg.subject(), data, patience)
	if err != nil {
		h.t.Fatalf("no answer: %v", err)
	}
	if err := agentproto.Decode(msg.Data, kind, reply); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) command(c *agentproto.Command) agentproto.Reply {
	h.t.Helper()
	var reply agentproto.Reply
	h.ask(c, agentproto.TypeReply, &reply)
	return reply
}

// tellTime replies to announcements with the time, unless the test does so itself.
func (h *host) tellTime() {
	h.t.Helper()
	if !h.timed {
		h.answerPresence(0, func(agentproto.Presence) {})
	}
}

// answerPresence replies to announcements like a worker whose clock is ahead.
func (h *host) answerPresence(ahead time.Duration, heard func(agentproto.Presence)) {
	h.t.Helper()
	h.answerTime(func() time.Time { return time.Now().Add(ahead) }, heard)
}

// answerTime replies to announcements like a worker with the clock now. It does not reply while now
// returns the zero time.
func (h *host) answerTime(now func() time.Time, heard func(agentproto.Presence)) {
	h.t.Helper()
	h.timed = true
	sub, err := h.conn.Subscribe(agentproto.PresenceSubject(0), func(m *nats.Msg) {
		var p agentproto.Presence
		if err := agentproto.Decode(m.Data, agentproto.TypePresence, &p); err != nil {
			h.t.Errorf("announcement: %v", err)
			return
		}
		at := now()
		if at.IsZero() {
			return
		}
		reply, err := agentproto.Encode(&agentproto.PresenceReply{Header: newHeader(agentproto.TypePresenceReply), ServerTime: at})
		if err != nil {
			h.t.Error(err)
			return
		}
		heard(p)
		_ = m.Respond(reply) // an agent without a reply repeats the request
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := h.conn.Flush(); err != nil {
		h.t.Fatal(err)
	}
}

func TestCommandIsAcceptedCarriedOutAndReported(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	c := h.starts("task", 0, 1)
	data, err := agentproto.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ask := nats.NewMsg(h.cfg.subject())
	ask.Data = data
	tracecontext.Inject(tracecontext.FromText(t.Context(), trace), ask.Header)
	msg, err := h.conn.RequestMsg(ask, patience)
	if err != nil {
		t.Fatal(err)
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(msg.Data, agentproto.TypeReply, &reply); err != nil {
		t.Fatal(err)
	}
	if reply.Refused != "" || len(reply.Items) != 2 || reply.Items[0].Result != nil || reply.Instance == "" {
		t.Fatalf("reply %+v", reply)
	}
	in := h.inbox
	seen := 0
	for seen < 2 {
		results := in.next()
		if results.Task != "task" || results.Host != "0:10.0.0.1" || results.Instance != reply.Instance {
			t.Errorf("results %+v", results)
		}
		if results.trace != trace {
			t.Errorf("trace %q, want %q", results.trace, trace)
		}
		seen += len(results.Results.Results)
	}
	h.engine.waitFor(t, 2)
	if op := h.engine.ops()[1]; op.Task != "task" || op.Item != 1 || op.Lane != "s" || op.Fence != 1 || op.Spec.Key != "task/1" {
		t.Errorf("operation %+v", op)
	}
}

func TestAcknowledgedResultsAreNotSentAgain(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	in := h.inbox
	h.command(h.starts("task", 0))
	in.collect(1)
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	h.start(nil)
	if u := h.engine.recovered.Unacknowledged; len(u) != 0 {
		t.Errorf("still unacknowledged: %+v", u)
	}
}

func TestRepeatedCommandRunsOnce(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	hold := make(chan struct{})
	h.start(hold)
	c := h.starts("task", 0)
	var senders sync.WaitGroup
	for range 100 {
		senders.Go(func() {
			if r := h.command(c); r.Refused != "" || len(r.Items) != 1 || r.Items[0].Result != nil {
				t.Errorf("reply %+v", r)
			}
		})
	}
	senders.Wait()
	h.engine.waitFor(t, 1)
	if ops := h.engine.ops(); len(ops) != 1 {
		t.Fatalf("submitted %d times", len(ops))
	}
	close(hold)
	h.inbox.collect(1)
	for _, restarted := range []bool{false, true} {
		if restarted {
			if err := h.stop(); err != nil {
				t.Fatal(err)
			}
			h.start(nil)
		}
		r := h.command(c)
		if len(r.Items) != 1 || r.Items[0].Result == nil || r.Items[0].Result.Message != "success" {
			t.Errorf("restarted %v: reply %+v", restarted, r)
		}
	}
	if ops := h.engine.ops(); len(ops) != 0 {
		t.Errorf("ran again after a restart: %+v", ops)
	}
}

func TestCommandsThatAreNotAccepted(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	for word, spoil := range map[string]func(*agentproto.Command){
		agentproto.RefusedHost:        func(c *agentproto.Command) { c.Host = "0:10.0.0.2" },
		agentproto.RefusedInstance:    func(c *agentproto.Command) { c.Instance = "another" },
		agentproto.RefusedExpired:     func(c *agentproto.Command) { c.AcceptBefore = time.Now() },
		agentproto.RefusedUndecodable: func(c *agentproto.Command) { c.Type = "procfleet.agent.v9.command" },
	} {
		c := h.starts("task", 0)
		spoil(c)
		if r := h.command(c); r.Refused != word || r.Message == "" || len(r.Items) != 0 {
			t.Errorf("%s: reply %+v", word, r)
		}
	}
	other := h.starts("task", 0)
	other.Type = "procfleet.agent.v9.command"
	if r := h.command(other); !strings.Contains(r.Message, `"procfleet.agent.v9.command" is unknown to this agent, whose protocol has version 1`) {
		t.Errorf("reply to another version of the protocol: %+v", r)
	}
	for _, spoil := range []func(*agentproto.Command){
		func(c *agentproto.Command) { c.Task = "" },
		func(c *agentproto.Command) { c.Lane = "a.b" },
	} {
		c := h.starts("task", 0)
		spoil(c)
		if r := h.command(c); r.Refused != agentproto.RefusedUndecodable {
			t.Errorf("reply %+v", r)
		}
	}
	for _, text := range []string{"", "{", "[]", "\xff", `{"type":7}`} {
		var r agentproto.Reply
		h.askRaw([]byte(text), agentproto.TypeReply, &r)
		if r.Refused != agentproto.RefusedUndecodable {
			t.Errorf("%q: reply %+v", text, r)
		}
	}
	if ops := h.engine.ops(); len(ops) != 0 {
		t.Errorf("carried out: %+v", ops)
	}
}

func TestBadItemsFailAlone(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	c := h.starts("task", 0, 1, 2, 3)
	c.Items[0].Spec = 9
	c.Specs[1] = json.RawMessage(`{"key":7}`)
	c.Specs[2] = json.RawMessage(`{}`)
	c.Items = append(c.Items, c.Items[3]) // named twice
	r := h.command(c)
	if len(r.Items) != 4 {
		t.Fatalf("reply %+v", r)
	}
	for i, item := range r.Items {
		if i == 3 {
			if item.Result != nil {
				t.Errorf("good item: %+v", item.Result)
			}
			continue
		}
		if item.Result == nil || item.Result.Code != agentproto.CodeFailed || !strings.HasPrefix(item.Result.Message, "start: bad spec: ") {
			t.Errorf("item %d: %+v", i, item.Result)
		}
	}
	h.engine.waitFor(t, 1)
	if ops := h.engine.ops(); len(ops) != 1 {
		t.Errorf("carried out: %+v", ops)
	}
}

func TestResultsWithoutAReceiptAreSentAfterARestart(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.inbox.close()
	h.start(nil)
	h.command(h.starts("task", 0, 1, 2))
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	h.inbox.open()
	h.start(nil)
	h.inbox.collect(3)
}

func TestResendSortsWhatTheAgentKnows(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	hold := make(chan struct{})
	h.start(hold)
	in := h.inbox
	h.command(h.starts("task", 0))
	close(hold)
	in.collect(1)
	h.engine.running.Wait()
	again := make(chan struct{})
	defer close(again)
	h.engine.holdNext(again)
	h.command(h.starts("task", 1))

	ask := &agentproto.Resend{
		Header: newHeader(agentproto.TypeResend), Task: "task", Lane: "s", Host: h.cfg.host(), Items: []int{0, 1, 2},
	}
	var r agentproto.ResendReply
	h.ask(ask, agentproto.TypeResendReply, &r)
	if fmt.Sprint(r.Sent, r.Running, r.Unknown) != "[0] [1] [2]" {
		t.Errorf("reply %+v", r)
	}
	if again := in.collect(1); again[journal.ID{Task: "task", Item: 0}] != 1 {
		t.Errorf("published again: %v", again)
	}
	ask.Instance = "another"
	var refused agentproto.ResendReply
	h.ask(ask, agentproto.TypeResendReply, &refused)
	if refused.Refused != agentproto.RefusedInstance {
		t.Errorf("reply %+v", refused)
	}
}

func TestAnswersLargerThanAMessageArePublishedInstead(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	in := h.inbox
	const items = 100
	var numbers []int
	for i := range items {
		numbers = append(numbers, i)
	}
	c := h.starts("task", numbers...)
	for i := range c.Specs {
		spec, err := json.Marshal(agentproto.Spec{Key: fmt.Sprint(i), StartCmd: "print " + strings.Repeat("x", 9<<10)})
		if err != nil {
			t.Fatal(err)
		}
		c.Specs[i] = spec
	}
	h.command(c)
	in.collect(items)
	r := h.command(c)
	answered := 0
	for _, item := range r.Items {
		if item.Result != nil {
			answered++
		}
	}
	if answered == 0 || answered == items {
		t.Fatalf("%d of %d results are in the reply", answered, items)
	}
	in.collect(items - answered)
}

func TestBurstIsAnsweredByOneGoroutine(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.Log = testenv.Silent()
	h.start(nil)
	const commands = 2000
	replies := make(chan *nats.Msg, commands)
	reply := h.conn.NewInbox()
	sub, err := h.conn.ChanSubscribe(reply, replies)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for i := range commands {
		data, err := agentproto.Encode(h.starts("task", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.conn.PublishRequest(h.cfg.subject(), reply, data); err != nil {
			t.Fatal(err)
		}
	}
	timeout := time.After(patience)
	for i := range commands {
		select {
		case <-replies:
		case <-timeout:
			t.Fatalf("%d of %d were answered", i, commands)
		}
	}
	h.inbox.collect(commands)
}

func TestJournalThatCannotBeUsedIsSaidInEveryAnswer(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	writeOtherJournal(t, h.cfg.DataDir)
	h.start(nil)
	c := h.starts("task", 0, 1)
	c.Items[1].Action = agentproto.ActionStatus
	r := h.command(c)
	if got := r.Items[0].Result; got == nil || got.Code != agentproto.CodeAgentAbnormal || !strings.Contains(got.Message, "has format 99, this agent reads format 1.") {
		t.Errorf("start: %+v", got)
	}
	if r.Items[1].Result != nil {
		t.Errorf("status: %+v", r.Items[1].Result)
	}
	h.inbox.collect(1)
}

func TestStoppingAgentTurnsAwayAndLeaves(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	left := make(chan agentproto.Presence, 1)
	h.answerPresence(0, func(p agentproto.Presence) {
		if p.Leaving {
			left <- p
		}
	})
	h.start(nil)
	h.command(h.starts("task", 0))
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	if !h.engine.stopped {
		t.Error("the engine was not stopped")
	}
	select {
	case p := <-left:
		if p.Host != "0:10.0.0.1" || p.Instance == "" || p.Supervised != 3 || p.CPU <= 0 || p.Memory <= 0 {
			t.Errorf("presence %+v", p)
		}
	case <-time.After(patience):
		t.Error("leaving was not announced")
	}
	h.inbox.collect(1) // the agent sent the result before it stopped
	if _, err := h.conn.Request(h.cfg.subject(), []byte("{}"), time.Second); err == nil {
		t.Error("a stopped agent answers")
	}
}

func TestCrashPointsAreReachedInOrder(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	var mu sync.Mutex
	var points []string
	h.cfg.Crash = func(point string) {
		mu.Lock()
		defer mu.Unlock()
		points = append(points, point)
	}
	h.start(nil)
	h.command(h.starts("task", 0))
	h.inbox.collect(1)
	testenv.Eventually(t, patience, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(points, []string{CrashReceived, CrashAfterReceipt})
	}, "both points are passed")
}

func TestExpiryIsJudgedByTheServersClock(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.answerPresence(time.Hour, func(agentproto.Presence) {})
	h.start(nil)
	late := h.starts("late", 0) // by the agent's own clock it has seconds left
	if r := h.command(late); r.Refused != agentproto.RefusedExpired {
		t.Errorf("reply %+v", r)
	}
	c := h.starts("task", 0)
	c.AcceptBefore = time.Now().Add(time.Hour + 10*time.Second)
	if r := h.command(c); r.Refused != "" {
		t.Errorf("reply %+v", r)
	}
	results := h.inbox.next()
	if at := results.Results.Results[0].AcceptedAt; time.Until(at) < 50*time.Minute {
		t.Errorf("accepted at %v, which is not the server's time", at)
	}
}

// The agent compares the deadline of a command with the server's clock when an operation is about to
// begin.
func TestDeadlineOfACommandReachesItsOperations(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.answerPresence(time.Hour, func(agentproto.Presence) {})
	h.start(nil)
	c := h.starts("task", 0)
	c.AcceptBefore = time.Now().Add(2 * time.Hour)
	c.NotAfter = time.Now().Add(time.Minute).UTC()
	h.command(c)
	h.engine.waitFor(t, 1)
	if op := h.engine.ops()[0]; !op.NotAfter.Equal(c.NotAfter) || h.engine.cfg.InTime(op.NotAfter) {
		t.Errorf("deadline %v of a server that is an hour ahead is not seen as passed", op.NotAfter)
	}
}

func TestAnnouncementsComeUntilAWorkerAnswers(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.PresenceInterval, h.timed = 50*time.Millisecond, true
	h.start(nil)
	heard := make(chan agentproto.Presence, 100)
	h.answerPresence(0, func(p agentproto.Presence) {
		select {
		case heard <- p:
		default:
		}
	})
	for range 3 {
		select {
		case p := <-heard:
			if p.Host != "0:10.0.0.1" || p.Instance == "" || p.Leaving || p.StartedAt.IsZero() {
				t.Errorf("presence %+v", p)
			}
		case <-time.After(patience):
			t.Fatal("no announcement")
		}
	}
}

func TestCommandThatExpiresWhileItIsWrittenDownIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	var expiry atomic.Pointer[time.Time]
	h.cfg.Crash = func(point string) {
		if point == CrashReceived { // the agent is frozen here
			<-time.After(time.Until(*expiry.Load()))
		}
	}
	h.start(nil)
	// On a busy machine a command may expire before the agent has it.
	var r agentproto.Reply
	for item, valid := 0, time.Second; item == 0 || r.Refused != "" && valid < 10*time.Second; item, valid = item+1, 2*valid {
		c := h.starts("task", item)
		c.AcceptBefore = time.Now().Add(valid)
		expiry.Store(&c.AcceptBefore)
		r = h.command(c)
	}
	if len(r.Items) != 1 || r.Items[0].Result == nil || !strings.Contains(r.Items[0].Result.Message, "not executed") {
		t.Errorf("reply %+v", r)
	}
	if ops := h.engine.ops(); len(ops) != 0 {
		t.Errorf("carried out: %+v", ops)
	}
	if got := h.inbox.next().Results.Results[0]; got.Reason != agentproto.ReasonRefused {
		t.Errorf("published %+v", got)
	}
}
