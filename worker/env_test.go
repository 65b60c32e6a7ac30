package worker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
	"github.com/procfleet/procfleet/worker/deliver"
	"github.com/procfleet/procfleet/worker/sweep"
)

func TestMain(m *testing.M) {
	code := m.Run()
	// nats.go starts it after the connection was closed, if an asynchronous
	// publish runs meanwhile, and then nothing ends it.
	lateInLibrary := goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect")
	if err := goleak.Find(lateInLibrary); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience is the maximum time that tests wait for an expected event.
const patience = 20 * time.Second

// env is a worker on a real bus with a fake store.
type env struct {
	*testenv.NATS
	t      *testing.T
	store  *fakeStore
	worker *worker.Worker
	stop   func() // ends the worker and waits for it
}

// quick returns short values of all timings for which a test would wait.
func quick() worker.Timing {
	const ms = time.Millisecond
	return worker.Timing{
		Deliver: deliver.Timing{
			AcceptWindow: time.Second, AcceptMargin: 50 * ms, Again: [2]time.Duration{300 * ms, 300 * ms},
			NoResponderAgain: 50 * ms, RefusedAgain: 20 * ms, ParkAfter: 100 * ms, Postpone: 10 * ms,
			Grace: 5 * time.Second, ReconnectGrace: time.Second, GraceAgain: 50 * ms,
		},
		Sweep: sweep.Timing{
			Round: 20 * ms, LeaseTTL: time.Second, LeaseTerm: 10 * time.Second,
			DispatchAfter: 100 * ms, RequeueAfter: 100 * ms, ResendAfter: 200 * ms, ResendWait: 200 * ms, LastCall: 150 * ms,
			RevisitMin: 50 * ms, RevisitMax: 200 * ms, AbsentAge: 300 * ms,
		},
		Pull: 500 * ms, RetryMin: 5 * ms, RetryMax: 50 * ms, Callback: time.Second, Drain: 5 * time.Second,
	}
}

// unswept disables the sweep's repair of queued chunks, so that a slow test does not deliver a
// chunk twice.
func unswept(cfg *worker.Config) {
	cfg.Timing.Sweep.DispatchAfter, cfg.Timing.Sweep.RequeueAfter = time.Hour, time.Hour
}

// start runs a worker; edit changes its configuration.
func start(t *testing.T, edit ...func(*worker.Config)) *env {
	t.Helper()
	e := &env{NATS: testenv.StartNATS(t), t: t, store: newFakeStore()}
	e.worker, e.stop = e.startWorker(edit...)
	return e
}

func (e *env) startWorker(edit ...func(*worker.Config)) (*worker.Worker, func()) {
	e.t.Helper()
	cfg := worker.Config{
		Conn: testenv.Connect(e.t, e.URL), Bus: e.Bus, Store: e.store, Log: testenv.Log(e.t), Timing: quick(),
		Receivers: destination.Anywhere(),
	}
	for _, change := range edit {
		change(&cfg)
	}
	w, err := worker.New(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				e.t.Errorf("worker ended: %v", err)
			}
		case <-time.After(patience):
			e.t.Error("worker does not end")
		}
	})
	e.t.Cleanup(stop)
	e.eventually(w.Ready, "worker is ready")
	return w, stop
}

func (e *env) eventually(cond func() bool, what string) {
	e.t.Helper()
	testenv.Eventually(e.t, patience, cond, what)
}

func host(n int) procfleet.Host {
	h, err := procfleet.NewHost(0, fmt.Sprintf("10.0.%d.%d", n/256, n%256))
	if err != nil {
		panic(err)
	}
	return h
}

func hosts(n int) []procfleet.Host {
	all := make([]procfleet.Host, n)
	for i := range all {
		all[i] = host(i + 1)
	}
	return all
}

// chunk returns a chunk with one action on one process on each of the hosts.
func chunk(action procfleet.Action, on ...procfleet.Host) procfleet.Chunk {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = "test", "app", "app", "/opt/app"
	c := procfleet.Chunk{Specs: []procfleet.ProcessSpec{spec}}
	for _, h := range on {
		c.Items = append(c.Items, procfleet.Item{Action: action, Target: procfleet.Target{Host: h}})
	}
	return c
}

// submit stores a task and queues its chunks, as a dispatcher does.
func (e *env) submit(timeout time.Duration, chunks ...procfleet.Chunk) procfleet.TaskID {
	e.t.Helper()
	task := e.store.create(procfleet.LaneSmall, timeout, chunks...)
	e.queue(task)
	return task.ID
}

func (e *env) queue(task procfleet.Task) {
	e.t.Helper()
	refs := make([]bus.ChunkRef, task.Chunks)
	for i := range refs {
		items, err := e.store.Chunk(e.t.Context(), task.ID, i)
		if err != nil {
			e.t.Fatal(err)
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: i, Lane: task.Lane, Cloud: items[0].Item.Target.Host.Cloud}
	}
	sequences, err := e.Bus.PublishChunks(e.t.Context(), refs, "0")
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.store.Dispatched(e.t.Context(), task.ID, sequences); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) state(id procfleet.TaskID, item int) procfleet.State {
	state, _ := e.store.result(id, item)
	return state
}

// waitState waits until an item is in a state and returns its result.
func (e *env) waitState(id procfleet.TaskID, item int, want procfleet.State) procfleet.Result {
	e.t.Helper()
	e.eventually(func() bool { return e.state(id, item) == want },
		fmt.Sprintf("item %d is %s", item, want))
	_, result := e.store.result(id, item)
	return result
}

// fakeAgent receives the commands of one host and replies as configured.
type fakeAgent struct {
	t        *testing.T
	conn     *nats.Conn
	host     procfleet.Host
	instance string

	mu       sync.Mutex
	commands []agentproto.Command
	resends  []agentproto.Resend
	// reply replies to the n-th command (from 0); nil sends no reply.
	reply func(n int, c *agentproto.Command) *agentproto.Reply
	// resend replies to every resend request; nil sends no reply.
	resend func(r *agentproto.Resend) *agentproto.ResendReply
	// sign, if set, signs the replies of resend.
	sign func(fleetkey.Message) nats.Header
}

func accept(_ int, c *agentproto.Command) *agentproto.Reply {
	reply := &agentproto.Reply{}
	for _, item := range c.Items {
		reply.Items = append(reply.Items, agentproto.ReplyItem{Item: item.Item})
	}
	return reply
}

func refuse(word, message string) func(int, *agentproto.Command) *agentproto.Reply {
	return func(int, *agentproto.Command) *agentproto.Reply {
		return &agentproto.Reply{Refused: word, Message: message}
	}
}

func silent(int, *agentproto.Command) *agentproto.Reply { return nil }

// agent starts a fake agent and makes it present in the store.
func (e *env) agent(h procfleet.Host, reply func(int, *agentproto.Command) *agentproto.Reply) *fakeAgent {
	e.t.Helper()
	a := &fakeAgent{t: e.t, conn: e.Conn, host: h, instance: "i-" + h.String(), reply: reply}
	e.store.present(h, a.instance)
	a.listen()
	return a
}

// listen subscribes, and returns after the server has the subscription.
func (a *fakeAgent) listen() *nats.Subscription {
	a.t.Helper()
	sub, err := a.conn.QueueSubscribe(agentproto.AgentSubject(int64(a.host.Cloud), a.host.Addr), agentproto.AgentQueue, a.handle)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.conn.Flush(); err != nil {
		a.t.Fatal(err)
	}
	return sub
}

func (a *fakeAgent) handle(msg *nats.Msg) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind, err := agentproto.PeekType(msg.Data)
	if err != nil {
		a.t.Errorf("agent got %q: %v", msg.Data, err)
		return
	}
	if kind == agentproto.TypeResend {
		a.handleResend(msg)
		return
	}
	var c agentproto.Command
	if err := agentproto.Decode(msg.Data, agentproto.TypeCommand, &c); err != nil {
		a.t.Errorf("agent got %q: %v", msg.Data, err)
		return
	}
	n := len(a.commands)
	a.commands = append(a.commands, c)
	if reply := a.reply(n, &c); reply != nil {
		a.respond(msg, reply)
	}
}

func (a *fakeAgent) respond(msg *nats.Msg, reply *agentproto.Reply) {
	reply.Type, reply.Instance = agentproto.TypeReply, a.instance
	data, err := agentproto.Encode(reply)
	if err == nil {
		err = msg.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // the test may be over
		a.t.Errorf("agent answers: %v", err)
	}
}

func (a *fakeAgent) handleResend(msg *nats.Msg) {
	var r agentproto.Resend
	if err := agentproto.Decode(msg.Data, agentproto.TypeResend, &r); err != nil {
		a.t.Errorf("agent got %q: %v", msg.Data, err)
		return
	}
	a.resends = append(a.resends, r)
	if a.resend == nil {
		return
	}
	reply := a.resend(&r)
	if reply == nil {
		return
	}
	reply.Type, reply.Instance = agentproto.TypeResendReply, cmp.Or(reply.Instance, a.instance)
	data, err := agentproto.Encode(reply)
	answer := &nats.Msg{Data: data}
	if a.sign != nil {
		answer.Header = a.sign(fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: r.ID, Body: data})
	}
	if err == nil {
		err = msg.RespondMsg(answer)
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // the test may be over
		a.t.Errorf("agent answers: %v", err)
	}
}

func (a *fakeAgent) got() []agentproto.Command {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]agentproto.Command(nil), a.commands...)
}

func (a *fakeAgent) asked() int { return len(a.got()) }

func (a *fakeAgent) chased() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.resends)
}

// publish sends results as a host's agent does: repeatedly, until a receipt names every item. The channel
// receives the receipt.
func (e *env) publish(id procfleet.TaskID, h procfleet.Host, results ...agentproto.Result) <-chan agentproto.Receipt {
	e.t.Helper()
	data := e.encode(resultsOf(id, h, results...))
	return e.sendUntilReceipt(&nats.Msg{Subject: agentproto.ResultSubject("s", int64(h.Cloud)), Data: data})
}

func resultsOf(id procfleet.TaskID, h procfleet.Host, results ...agentproto.Result) *agentproto.Results {
	return &agentproto.Results{
		Header: agentproto.Header{Type: agentproto.TypeResults, ID: uuid.NewString()},
		Task:   string(id), Host: h.String(), Results: results,
	}
}

func (e *env) sendUntilReceipt(msg *nats.Msg) <-chan agentproto.Receipt {
	ctx, done := e.t.Context(), make(chan agentproto.Receipt, 1)
	go func() {
		for ctx.Err() == nil {
			if receipt, _, err := e.request(ctx, msg); err == nil && receipt.RetryAfterMS == 0 {
				done <- receipt
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // earlier than RetryAfter of the receipt
			}
		}
	}()
	return done
}

// request sends a message and returns the receipt.
func (e *env) request(ctx context.Context, msg *nats.Msg) (receipt agentproto.Receipt, reply *nats.Msg, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, err = e.Conn.RequestMsgWithContext(ctx, msg)
	if err == nil {
		err = agentproto.Decode(reply.Data, agentproto.TypeReceipt, &receipt)
	}
	return receipt, reply, err
}

// receives waits for a receipt.
func (e *env) receives(receipts <-chan agentproto.Receipt) agentproto.Receipt {
	e.t.Helper()
	select {
	case r := <-receipts:
		return r
	case <-time.After(patience):
		e.t.Fatal("no receipt came")
		return agentproto.Receipt{}
	}
}

func succeeded(item int) agentproto.Result {
	return agentproto.Result{Item: item, Code: agentproto.CodeSuccess, Reason: agentproto.ReasonSucceeded, Message: "success", FinishedAt: time.Now()}
}

func conflict(p *taskstore.Presence) { p.Conflict = true }
func sinceNow(p *taskstore.Presence) { p.Since = time.Now().Add(time.Second) }
func (e *env) queued(stream string) int {
	e.t.Helper()
	s, err := e.JS.Stream(e.t.Context(), stream)
	if err != nil {
		e.t.Fatal(err)
	}
	info, err := s.Info(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	return int(info.State.Msgs)
}
