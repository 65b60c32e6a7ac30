package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/testenv"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testenv.WithoutProfile()
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// host is one agent program with a broker of its own.
type host struct {
	t       testing.TB
	nats    *testenv.NATS
	results chan []agentproto.Result // one for each message received
	worker  *nats.Subscription       // replies receipts
	program string
	data    string
	child   *testenv.Child
}

const hostName = "0:10.0.0.1"

var subject = agentproto.AgentSubject(0, netip.MustParseAddr("10.0.0.1"))

func newHost(tb testing.TB) *host {
	tb.Helper()
	h := &host{
		t: tb, nats: testenv.StartNATS(tb), program: testenv.BuildBinary(tb, "./cmd/procfleet-agent"), data: tb.TempDir(),
		results: make(chan []agentproto.Result, 10_000),
	}
	h.tellTime()
	h.receive()
	return h
}

// receive subscribes to results and replies with receipts, as a worker does.
func (h *host) receive() {
	h.t.Helper()
	var err error
	h.worker, err = h.nats.Conn.Subscribe(agentproto.ResultsOfLane("s"), func(msg *nats.Msg) {
		var m agentproto.Results
		if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &m); err != nil {
			h.t.Error(err)
			return
		}
		receipt := agentproto.Receipt{Header: agentproto.Header{Type: agentproto.TypeReceipt, ID: "receipt", Sent: time.Now()}, Task: m.Task}
		for _, r := range m.Results {
			receipt.Stored = append(receipt.Stored, r.Item)
		}
		h.results <- m.Results
		data, err := agentproto.Encode(&receipt)
		if err != nil {
			h.t.Error(err)
		}
		_ = msg.Respond(data) // without a reply the agent sends again
	})
	if err == nil {
		err = h.nats.Conn.Flush()
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// tellTime replies to announcements like a worker: without the servers' time an agent accepts no command.
func (h *host) tellTime() {
	h.t.Helper()
	_, err := h.nats.Conn.Subscribe(agentproto.PresenceSubject(0), func(m *nats.Msg) {
		now := time.Now().UTC()
		data, err := agentproto.Encode(&agentproto.PresenceReply{
			Header: agentproto.Header{Type: agentproto.TypePresenceReply, ID: "presence", Sent: now}, ServerTime: now,
		})
		if err != nil {
			h.t.Error(err)
			return
		}
		_ = m.Respond(data) // an agent without a reply repeats the request
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// start runs the agent, which kills itself at the crash point if there is one.
func (h *host) start(crash string) {
	h.t.Helper()
	var env []string
	if crash != "" {
		env = append(env, crashpoint.Variable+"="+crash)
	}
	h.child = testenv.StartChild(h.t, env, h.program,
		"--nats", h.nats.URL, "--cloud", "0", "--ip", "10.0.0.1", "--data", h.data)
	h.child.WaitOutput(h.t, patience, "accepting commands")
}

// deliver sends a command repeatedly, as a worker does, until the agent replies or has ended. It returns
// the results in the reply.
func (h *host) deliver(c *agentproto.Command) (answered bool, results []agentproto.Result) {
	h.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		c.AcceptBefore = time.Now().Add(10 * time.Second)
		data, err := agentproto.Encode(c)
		if err != nil {
			h.t.Fatal(err)
		}
		msg, err := h.nats.Conn.Request(subject, data, time.Second)
		if err != nil {
			select {
			case <-h.child.Done():
				return false, nil
			default:
				continue
			}
		}
		var reply agentproto.Reply
		if err := agentproto.Decode(msg.Data, agentproto.TypeReply, &reply); err != nil {
			h.t.Fatal(err)
		}
		if reply.Refused != "" {
			h.t.Fatalf("refused: %s, %s", reply.Refused, reply.Message)
		}
		for _, item := range reply.Items {
			if item.Result != nil {
				results = append(results, *item.Result)
			}
		}
		return true, results
	}
	h.t.Fatal("the agent neither answers nor ends")
	return false, nil
}

// received waits for a result, and returns all results that arrive until none arrives for the given time.
func (h *host) received(wait time.Duration) []agentproto.Result {
	h.t.Helper()
	var results []agentproto.Result
	for timeout := patience; ; timeout = wait {
		select {
		case more := <-h.results:
			results = append(results, more...)
		case <-time.After(timeout):
			if len(results) == 0 {
				h.t.Fatal("no results received")
			}
			return results
		}
	}
}

// seen returns the result of a status command: from the reply, or, if the status took longer than the
// agent delays the reply, from the results that the agent sent.
func (h *host) seen(c *agentproto.Command) agentproto.Result {
	h.t.Helper()
	_, results := h.deliver(c)
	if len(results) == 0 {
		results = h.received(100 * time.Millisecond)
	}
	return results[0]
}

// sleeper is a daemon whose start command appends a line to a file.
type sleeper struct {
	t    testing.TB
	runs string
	pid  string
	spec agentproto.Spec
}

func newSleeper(tb testing.TB) *sleeper {
	tb.Helper()
	me, err := user.Current()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	s := &sleeper{t: tb, runs: filepath.Join(dir, "runs"), pid: filepath.Join(dir, "sleeper.pid")}
	s.spec = agentproto.Spec{
		Key: dir, ProcName: "sleep", SetupPath: dir, PidPath: s.pid, Account: me.Username, NoProfile: true, Type: "resident",
		StartCmd:    fmt.Sprintf("echo run >> %s; setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! > %s", s.runs, s.pid),
		OpTimeoutMS: 10_000, StartCheckBeginMS: 300, StartCheckEndMS: 300, StopCheckMS: 2_000, StartRetries: 2, StartIntervalMS: 1_000,
		Instances: 1,
	}
	tb.Cleanup(s.kill)
	return s
}

// process returns the daemon's pid, 0 if it does not run.
func (s *sleeper) process() int {
	text, err := os.ReadFile(s.pid)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	// A zombie counts as ended, even if no process reaps it.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || !strings.Contains(string(stat), " (sleep) ") || strings.Contains(string(stat), " (sleep) Z") {
		return 0
	}
	return pid
}

func (s *sleeper) kill() {
	if pid := s.process(); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Error(err)
		}
	}
}

// started returns how often the start command ran.
func (s *sleeper) started() int {
	data, err := os.ReadFile(s.runs)
	if err != nil {
		return 0
	}
	return strings.Count(string(data), "run\n")
}

// command returns a command with an action on the daemon as item 0 of a task.
func (s *sleeper) command(task, action string, fence int64) *agentproto.Command {
	spec, err := json.Marshal(&s.spec)
	if err != nil {
		s.t.Fatal(err)
	}
	return &agentproto.Command{
		Header: agentproto.Header{Type: agentproto.TypeCommand, ID: task, Sent: time.Now()}, Task: task, Lane: "s", Host: hostName,
		Items: []agentproto.CommandItem{{Action: action, Fence: fence}}, Specs: []json.RawMessage{spec},
	}
}
