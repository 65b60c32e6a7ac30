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

// Patience is the timeout of waits in tests. It is far longer than the tested programs need.
const Patience = 90 * time.Second

// Quick is a value of PROCFLEET_AGENT_TIMING with short intervals. Start windows still give
// a process a second to settle. On a busy machine the parent of a daemon may run for seconds;
// it is not the process itself.
const Quick = "sweep=500ms,stop_poll=20ms,window_poll=20ms,foreground_after=30s,reload_wait=300ms,kill_grace=500ms," +
	"recover_delay=100ms,journal_retry=50ms,trim_outputs=300ms"

// Host is a simulated host with an agent, and the servers to which the agent connects. Each
// host has its own cloud area, so that several hosts can share a broker.
type Host struct {
	tb   testing.TB
	nats *testenv.NATS
	// URL is the address of NATS for the agent.
	URL string
	// Binary is the path of the agent's program.
	Binary string
	// Data is the agent's data folder, which remains when the agent ends.
	Data string
	// Agent is the latest agent process.
	Agent *testenv.Child
	// Wrapper precedes the agent's command line: a program that changes the environment of
	// the agent and then executes it.
	Wrapper []string
	// Attributes are the process attributes of agents that are started.
	Attributes *syscall.SysProcAttr

	cloud   int64
	mark    string
	tasks   atomic.Int64
	ahead   atomic.Int64 // nanoseconds that the servers' clock is ahead of this host's
	mu      sync.Mutex
	results map[ID][]agentproto.Result // received results, in order
	events  []agentproto.Event
}

// ID identifies one operation.
type ID struct {
	Task string
	Item int
}

var (
	address = netip.MustParseAddr("10.0.0.1")
	clouds  atomic.Int64
	prefix  = fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixNano())
)

// markVariable is an environment variable of all processes that belong to a host.
const markVariable = "AGENTTEST_MARK"

// New returns a host without a running agent. At the end of the test [Host.Clear] is called.
func New(tb testing.TB, nats *testenv.NATS) *Host {
	tb.Helper()
	h := &Host{
		tb: tb, nats: nats, URL: nats.URL, Data: tb.TempDir(), Binary: testenv.BuildBinary(tb, "./cmd/procfleet-agent"), cloud: clouds.Add(1),
		results: map[ID][]agentproto.Result{},
	}
	h.mark = fmt.Sprintf("%s.%d", prefix, h.cloud)
	h.serve()
	tb.Cleanup(h.Clear)
	return h
}

// Clear kills the agent and all processes that have the environment of [Host.Env].
func (h *Host) Clear() {
	h.tb.Helper()
	if h.Agent != nil {
		h.Agent.Kill() // first, because it would restart the other processes
	}
	h.killAll()
}

func (h *Host) subject() string { return agentproto.AgentSubject(h.cloud, address) }

// Name returns the name of the host, "<cloud area>:<ip>".
func (h *Host) Name() string { return fmt.Sprintf("%d:%s", h.cloud, address) }

// Start runs the agent and waits until it accepts commands. env is added to its environment;
// the default timing is [Quick].
func (h *Host) Start(env ...string) {
	h.tb.Helper()
	h.Launch(env...)
	h.Agent.WaitOutput(h.tb, Patience, "accepting commands")
}

// Launch is [Host.Start] without the wait.
func (h *Host) Launch(env ...string) {
	h.tb.Helper()
	h.Agent = testenv.StartCommand(h.tb, h.Command(env...))
}

// Command returns the command that Launch runs.
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

// Rhythm returns the environment entry that sets the agent's timing. Omitted intervals have
// their defaults.
func Rhythm(timing string) string { return "PROCFLEET_AGENT_TIMING=" + timing }

// QuickBut returns the environment entry for [Quick] with other values for some intervals.
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

// CrashAt returns the environment entry that kills the agent at a point.
func CrashAt(point string) string { return "PROCFLEET_CRASH_AT=" + point }

// Stop stops the agent by SIGTERM and expects exit code 0.
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

// NewCommand returns a command with one item: an action on one process, in a new task.
func (h *Host) NewCommand(action string, spec agentproto.Spec) *agentproto.Command {
	h.tb.Helper()
	n := h.tasks.Add(1)
	return &agentproto.Command{
		Header: header(agentproto.TypeCommand), Task: fmt.Sprintf("GSETASK:TEST:%d", n), Lane: "s", Host: h.Name(),
		Items: []agentproto.CommandItem{{Action: action, Fence: n}}, Specs: []json.RawMessage{h.encode(spec)},
	}
}

func (h *Host) encode(spec agentproto.Spec) json.RawMessage {
	h.tb.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		h.tb.Fatal(err)
	}
	return text
}

// Deliver sends a command like a worker: it retries until the agent replies or has ended. If
// the agent has ended it returns nil.
func (h *Host) Deliver(c *agentproto.Command) *agentproto.Reply {
	h.tb.Helper()
	// Double the timeout on a busy host, where each retry is additional work.
	wait := replyTimeout
	for end := time.Now().Add(Patience); time.Now().Before(end); {
		c.AcceptBefore = time.Now().Add(Patience)
		reply, err := h.request(c, wait)
		if err == nil && reply.Refused != agentproto.RefusedExpired { // the agent may not have the servers' time yet
			return reply
		}
		if errors.Is(err, nats.ErrTimeout) {
			wait *= 2
		}
		select {
		case <-h.Agent.Done():
			return nil
		case <-time.After(10 * time.Millisecond): // the agent may not have subscribed yet
		}
	}
	h.tb.Fatal("the agent neither replies nor ends")
	return nil
}

// replyTimeout is the timeout of one request.
const replyTimeout = 2 * time.Second

// Ask sends a command once.
func (h *Host) Ask(c *agentproto.Command) (*agentproto.Reply, error) {
	return h.request(c, replyTimeout)
}

func (h *Host) request(c *agentproto.Command, wait time.Duration) (*agentproto.Reply, error) {
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

// Submit delivers a command, expects the agent to accept it, and returns the ids of its
// operations.
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
			h.results[id] = append(h.results[id], *item.Result)
		}
	}
	return ids
}

// Begin submits an action on one process and does not wait for its result.
func (h *Host) Begin(action string, spec agentproto.Spec) ID {
	h.tb.Helper()
	return h.Submit(h.NewCommand(action, spec))[0]
}

// Do submits an action on one process and returns its result.
func (h *Host) Do(action string, spec agentproto.Spec) agentproto.Result {
	h.tb.Helper()
	return h.Result(h.Begin(action, spec))
}

// DoAll submits an action on many processes as one task and returns the results.
func (h *Host) DoAll(action string, specs []agentproto.Spec) []agentproto.Result {
	h.tb.Helper()
	all := h.NewCommand(action, specs[0])
	for i, spec := range specs[1:] {
		all.Items = append(all.Items, agentproto.CommandItem{Item: i + 1, Action: action, Spec: i + 1, Fence: all.Items[0].Fence})
		all.Specs = append(all.Specs, h.encode(spec))
	}
	var results []agentproto.Result
	for _, id := range h.Submit(all) {
		results = append(results, h.Result(id))
	}
	return results
}

// Result waits for the result of an operation. It waits longer than the timeouts in the
// specs of [Host.Program], because a late result is more informative than none.
func (h *Host) Result(id ID) agentproto.Result {
	h.tb.Helper()
	testenv.Eventually(h.tb, 2*Patience, func() bool { return len(h.Heard(id)) > 0 }, "the agent sends a result of "+id.Task)
	return h.Heard(id)[0]
}

// Expect runs an action and checks the code of its result and the beginning of its message.
func (h *Host) Expect(action string, spec agentproto.Spec, code int, message string) agentproto.Result {
	h.tb.Helper()
	return h.Check(h.Do(action, spec), code, message)
}

// Check fails the test unless the result has the code and the beginning of the message.
func (h *Host) Check(r agentproto.Result, code int, message string) agentproto.Result {
	h.tb.Helper()
	if r.Code != code || !strings.HasPrefix(r.Message, message) || code == 0 && r.Message != "success" {
		h.tb.Fatalf("result is %d %q (warnings %q, status %+v), want %d %q", r.Code, r.Message, r.Warnings, r.Status, code, message)
	}
	return r
}

// Says fails the test unless a result's message, warnings or evidence contain the text.
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

// Status returns the status of a process.
func (h *Host) Status(spec agentproto.Spec) agentproto.Status {
	h.tb.Helper()
	r := h.Do(agentproto.ActionStatus, spec)
	if r.Status == nil {
		h.tb.Fatalf("a result without status: %d %s", r.Code, r.Message)
	}
	return *r.Status
}

// Becomes waits until is returns true for the status, and returns the status.
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
