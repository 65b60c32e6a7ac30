package agenttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// Patience is how long tests wait for what should take far less.
const Patience = 90 * time.Second

// Quick is a rhythm for PROCFLEET_AGENT_TIMING in which little is waited for.
// A window still gives a process a second to settle.
const Quick = "sweep=500ms,stop_poll=20ms,window_poll=20ms,foreground_after=300ms,reload_wait=300ms,kill_grace=500ms," +
	"recover_delay=100ms,journal_retry=50ms,trim_outputs=300ms"

// Host is one host with an agent and its servers' side of the broker. Each has
// a cloud area of its own, so that several share a broker.
type Host struct {
	tb   testing.TB
	nats *testenv.NATS
	// URL is where the agent finds NATS.
	URL string
	// Binary is the agent's program file.
	Binary string
	// Data is the agent's data folder; it outlives the agent.
	Data string
	// Agent is the agent that runs or ran last.
	Agent *testenv.Child
	// Wrapper goes before the agent's command line: a program that changes what
	// the agent will see and then becomes it.
	Wrapper []string
	// Attributes are those with which agents are started.
	Attributes *syscall.SysProcAttr

	cloud  int64
	mark   string
	tasks  atomic.Int64
	ahead  atomic.Int64 // of the servers' clock, in nanoseconds
	silent atomic.Bool  // no receipts are sent
	mu     sync.Mutex
	heard  map[ID][]agentproto.Result // received, in order
	events []agentproto.Event
	wanted agentproto.Settings
}

// ID names one operation.
type ID struct {
	Task string
	Item int
}

var (
	address = netip.MustParseAddr("10.0.0.1")
	clouds  atomic.Int64
	prefix  = fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixNano())
)

// markVariable is in the environment of everything that belongs to a host.
const markVariable = "AGENTTEST_MARK"

// New returns a host without a running agent. When the test ends, the agent and
// everything that was started with [Host.Env] is killed.
func New(tb testing.TB, nats *testenv.NATS) *Host {
	tb.Helper()
	h := &Host{
		tb: tb, nats: nats, URL: nats.URL, Data: tb.TempDir(), Binary: testenv.BuildBinary(tb, "./cmd/procfleet-agent"), cloud: clouds.Add(1),
		heard: map[ID][]agentproto.Result{},
	}
	h.mark = fmt.Sprintf("%s.%d", prefix, h.cloud)
	h.listen()
	tb.Cleanup(h.Clear)
	return h
}

// Clear kills the agent and everything that was started with [Host.Env]. It is
// done at the end of the test in any case.
func (h *Host) Clear() {
	h.tb.Helper()
	if h.Agent != nil {
		h.Agent.Kill() // it would start again what is killed next
	}
	h.killAll()
}

// listen takes the place of the servers.
func (h *Host) listen() {
	h.tb.Helper()
	for subject, take := range map[string]func(*nats.Msg){
		agentproto.ResultSubject("s", h.cloud): h.hear,
		agentproto.EventSubject(h.cloud):       h.note,
		agentproto.PresenceSubject(h.cloud):    h.greet,
		agentproto.SettingsSubject(h.cloud):    h.tellSettings,
	} {
		sub, err := h.nats.Conn.Subscribe(subject, take)
		if err != nil {
			h.tb.Fatal(err)
		}
		h.tb.Cleanup(func() { sub.Unsubscribe() })
	}
	if err := h.nats.Conn.FlushTimeout(Patience); err != nil {
		h.tb.Fatal(err)
	}
}

func (h *Host) hear(msg *nats.Msg) {
	var m agentproto.Results
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &m); err != nil {
		h.tb.Error(err)
		return
	}
	receipt := &agentproto.Receipt{Header: header(agentproto.TypeReceipt), Task: m.Task}
	h.mu.Lock()
	for _, r := range m.Results {
		id := ID{m.Task, r.Item}
		h.heard[id] = append(h.heard[id], r)
		receipt.Stored = append(receipt.Stored, r.Item)
	}
	h.mu.Unlock()
	h.acknowledge(msg, receipt)
}

func (h *Host) note(msg *nats.Msg) {
	var e agentproto.Event
	if err := agentproto.Decode(msg.Data, agentproto.TypeEvent, &e); err != nil {
		h.tb.Error(err)
		return
	}
	h.mu.Lock()
	if !slices.ContainsFunc(h.events, func(known agentproto.Event) bool { return known.ID == e.ID }) { // as the stream does
		h.events = append(h.events, e)
	}
	h.mu.Unlock()
	h.acknowledge(msg, &agentproto.Receipt{Header: header(agentproto.TypeReceipt), Event: e.ID})
}

// WithholdReceipts has the servers reply to no results and no events from now
// on, or reply again. They receive them in any case.
func (h *Host) WithholdReceipts(withhold bool) { h.silent.Store(withhold) }

func (h *Host) acknowledge(msg *nats.Msg, receipt *agentproto.Receipt) {
	if !h.silent.Load() {
		h.answer(msg, receipt)
	}
}

// GetAhead has the servers' clock be ahead of this host's from now on.
func (h *Host) GetAhead(by time.Duration) { h.ahead.Store(int64(by)) }

// now is the servers' time.
func (h *Host) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())).UTC() }

func (h *Host) greet(msg *nats.Msg) {
	h.answer(msg, &agentproto.PresenceReply{Header: header(agentproto.TypePresenceReply), ServerTime: h.now()})
}

func (h *Host) tellSettings(msg *nats.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer(msg, &agentproto.SettingsReply{
		Header: header(agentproto.TypeSettingsReply), ServerTime: h.now(), Settings: h.wanted,
	})
}

func (h *Host) answer(msg *nats.Msg, m agentproto.Message) {
	data, err := agentproto.Encode(m)
	if err == nil {
		err = msg.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		h.tb.Error(err)
	}
}

func header(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: messageType, Sent: time.Now().UTC()}
}

// Want sets what the agent is answered when it asks for its settings, and
// tells it to ask.
func (h *Host) Want(s agentproto.Settings) {
	h.tb.Helper()
	h.mu.Lock()
	h.wanted = s
	h.mu.Unlock()
	h.publish(&agentproto.SettingsChanged{Header: header(agentproto.TypeSettingsChanged)})
}

func (h *Host) publish(m agentproto.Message) {
	h.tb.Helper()
	data, err := agentproto.Encode(m)
	if err == nil {
		err = h.nats.Conn.Publish(h.subject(), data)
	}
	if err != nil {
		h.tb.Fatal(err)
	}
}

func (h *Host) subject() string { return agentproto.AgentSubject(h.cloud, address) }

// Name is "<cloud>:<ip>".
func (h *Host) Name() string { return fmt.Sprintf("%d:%s", h.cloud, address) }

// Start runs the agent, with the rhythm of [Quick] unless env says another, and
// waits until it takes commands.
func (h *Host) Start(env ...string) {
	h.tb.Helper()
	h.Launch(env...)
	h.Agent.WaitOutput(h.tb, Patience, "accepting commands")
}

// Launch is [Host.Start] that does not wait.
func (h *Host) Launch(env ...string) {
	h.tb.Helper()
	h.Agent = testenv.StartCommand(h.tb, h.Command(env...))
}

// Command is what Launch runs.
func (h *Host) Command(env ...string) *exec.Cmd {
	h.tb.Helper()
	line := slices.Concat(h.Wrapper, []string{
		h.Binary, "--nats", h.URL, "--cloud", fmt.Sprint(h.cloud), "--ip", address.String(), "--data", h.Data,
	})
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = slices.Concat(os.Environ(), []string{Rhythm(Quick)}, env)
	cmd.SysProcAttr = h.Attributes
	return cmd
}

// Rhythm is the entry of an agent's environment that sets its rhythm; what it
// does not name keeps its default.
func Rhythm(timing string) string { return "PROCFLEET_AGENT_TIMING=" + timing }

// QuickBut is [Quick] with other values for some names.
func QuickBut(timing string) string {
	fields := map[string]string{}
	for setting := range strings.SplitSeq(Quick+","+timing, ",") {
		name, value, _ := strings.Cut(setting, "=")
		fields[name] = value
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		settings = append(settings, name+"="+fields[name])
	}
	return Rhythm(strings.Join(settings, ","))
}

// CrashAt is the entry of an agent's environment that kills it at a point.
func CrashAt(point string) string { return "PROCFLEET_CRASH_AT=" + point }

// Stop ends the agent in good order.
func (h *Host) Stop() {
	h.tb.Helper()
	h.Agent.Signal(syscall.SIGTERM)
	if code := h.Agent.Wait(h.tb, Patience); code != 0 {
		h.tb.Errorf("the agent ended with code %d", code)
	}
}

// Died waits until the agent has ended.
func (h *Host) Died() {
	h.tb.Helper()
	h.Agent.Wait(h.tb, Patience)
}

// NewCommand is an action on one process as item 0 of a task of its own.
func (h *Host) NewCommand(action string, spec agentproto.Spec) *agentproto.Command {
	h.tb.Helper()
	n := h.tasks.Add(1)
	text, err := json.Marshal(spec)
	if err != nil {
		h.tb.Fatal(err)
	}
	return &agentproto.Command{
		Header: header(agentproto.TypeCommand), Task: fmt.Sprintf("GSETASK:TEST:%d", n), Lane: "s", Host: h.Name(),
		Items: []agentproto.CommandItem{{Action: action, Fence: n}}, Specs: []json.RawMessage{text},
	}
}

// NewCommands is an action on many processes as the items of one task.
func (h *Host) NewCommands(action string, specs []agentproto.Spec) *agentproto.Command {
	h.tb.Helper()
	all := h.NewCommand(action, specs[0])
	for i, spec := range specs[1:] {
		text, err := json.Marshal(spec)
		if err != nil {
			h.tb.Fatal(err)
		}
		all.Items = append(all.Items, agentproto.CommandItem{Item: i + 1, Action: action, Spec: i + 1, Fence: all.Items[0].Fence})
		all.Specs = append(all.Specs, text)
	}
	return all
}

// Deliver sends a command like a worker does, again and again until the agent
// answers or has ended; then the answer is nil.
func (h *Host) Deliver(c *agentproto.Command) *agentproto.Reply {
	h.tb.Helper()
	// A busy host is given longer each time: what is asked again is more work.
	wait := answerTime
	for end := time.Now().Add(Patience); time.Now().Before(end); {
		c.AcceptBefore = time.Now().Add(Patience)
		reply, err := h.ask(c, wait)
		if err == nil && reply.Refused != agentproto.RefusedExpired { // it may not know the time yet
			return reply
		}
		if errors.Is(err, nats.ErrTimeout) {
			wait *= 2
		}
		select {
		case <-h.Agent.Done():
			return nil
		case <-time.After(10 * time.Millisecond): // nobody may have subscribed yet
		}
	}
	h.tb.Fatal("the agent neither answers nor ends")
	return nil
}

// answerTime is how long an answer may take on a host with time to spare.
const answerTime = 2 * time.Second

// Ask sends a command once.
func (h *Host) Ask(c *agentproto.Command) (*agentproto.Reply, error) { return h.ask(c, answerTime) }

func (h *Host) ask(c *agentproto.Command, wait time.Duration) (*agentproto.Reply, error) {
	data, err := agentproto.Encode(c)
	if err != nil {
		return nil, err
	}
	msg, err := h.nats.Conn.Request(h.subject(), data, wait)
	if err != nil {
		return nil, err
	}
	reply := &agentproto.Reply{}
	return reply, agentproto.Decode(msg.Data, agentproto.TypeReply, reply)
}

// Submit delivers a command and expects that the agent takes it. It returns
// the names of the items.
func (h *Host) Submit(c *agentproto.Command) []ID {
	h.tb.Helper()
	reply := h.Deliver(c)
	if reply == nil {
		h.tb.Fatal("the agent has ended")
	}
	if reply.Refused != "" {
		h.tb.Fatalf("refused: %s, %s", reply.Refused, reply.Message)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]ID, len(c.Items))
	for i, item := range c.Items {
		ids[i] = ID{c.Task, item.Item}
	}
	for _, item := range reply.Items {
		if id := (ID{c.Task, item.Item}); item.Result != nil {
			h.heard[id] = append(h.heard[id], *item.Result)
		}
	}
	return ids
}

// Begin submits an action on one process and does not wait for its result.
func (h *Host) Begin(action string, spec agentproto.Spec) ID {
	h.tb.Helper()
	return h.Submit(h.NewCommand(action, spec))[0]
}

// Do is an action on one process with its result.
func (h *Host) Do(action string, spec agentproto.Spec) agentproto.Result {
	h.tb.Helper()
	return h.Result(h.Begin(action, spec))
}

// DoAll is an action on many processes with their results.
func (h *Host) DoAll(action string, specs []agentproto.Spec) []agentproto.Result {
	h.tb.Helper()
	var results []agentproto.Result
	for _, id := range h.Submit(h.NewCommands(action, specs)) {
		results = append(results, h.Result(id))
	}
	return results
}

// Heard returns what was answered or sent of an operation so far.
func (h *Host) Heard(id ID) []agentproto.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.heard[id])
}

// Result waits for the result of an operation, for longer than one may take by
// the specs of [Host.Program]: what it says is more than that it did not come.
func (h *Host) Result(id ID) agentproto.Result {
	h.tb.Helper()
	testenv.Eventually(h.tb, 2*Patience, func() bool { return len(h.Heard(id)) > 0 }, "there is a result of "+id.Task)
	return h.Heard(id)[0]
}

// Expect checks the code of an action's result and the beginning of its message.
func (h *Host) Expect(action string, spec agentproto.Spec, code int, message string) agentproto.Result {
	h.tb.Helper()
	return h.Check(h.Do(action, spec), code, message)
}

// Check demands a code and the beginning of a message.
func (h *Host) Check(r agentproto.Result, code int, message string) agentproto.Result {
	h.tb.Helper()
	if r.Code != code || !strings.HasPrefix(r.Message, message) || code == 0 && r.Message != "success" {
		h.tb.Fatalf("result is %d %q (warnings %q, status %+v), want %d %q", r.Code, r.Message, r.Warnings, r.Status, code, message)
	}
	return r
}

// Says demands that a result's message, warnings or evidence contains a text.
func (h *Host) Says(r agentproto.Result, text string) {
	h.tb.Helper()
	all := append([]string{r.Message}, r.Warnings...)
	if r.Status != nil {
		all = append(all, r.Status.Evidence)
	}
	if !strings.Contains(strings.Join(all, "\n"), text) {
		h.tb.Fatalf("%q is not in %q", text, all)
	}
}

// Status asks how a process stands.
func (h *Host) Status(spec agentproto.Spec) agentproto.Status {
	h.tb.Helper()
	r := h.Do(agentproto.ActionStatus, spec)
	if r.Status == nil {
		h.tb.Fatalf("a status without facts: %d %s", r.Code, r.Message)
	}
	return *r.Status
}

// Becomes waits until the status is as wanted, and returns it.
func (h *Host) Becomes(spec agentproto.Spec, what string, is func(agentproto.Status) bool) agentproto.Status {
	h.tb.Helper()
	var last agentproto.Status
	for end := time.Now().Add(Patience); ; {
		if last = h.Status(spec); is(last) {
			return last
		}
		if time.Now().After(end) {
			h.tb.Fatalf("not within %v: %s; the status is %+v", Patience, what, last)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Events returns the events of a kind that were told so far.
func (h *Host) Events(kind string) []agentproto.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.events), func(e agentproto.Event) bool { return e.Kind != kind })
}

// Event waits for an event of a kind about a process; "" is any.
func (h *Host) Event(kind, key string) agentproto.Event {
	h.tb.Helper()
	var found agentproto.Event
	testenv.Eventually(h.tb, Patience, func() bool {
		for _, e := range h.Events(kind) {
			if key == "" || e.Key == key {
				found = e
				return true
			}
		}
		return false
	}, "there is an event "+kind)
	return found
}
