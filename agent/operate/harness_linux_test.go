package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// patience bounds the waits of a test; they normally end much earlier.
const patience = time.Minute

// rig is an engine with short intervals, and the programs that it manages.
type rig struct {
	t       *testing.T
	cfg     Config
	engine  *Engine
	ledger  *ledger
	dir     string // setup path of the process
	account string // user that runs the tests

	mu      sync.Mutex
	results map[journal.ID]agentproto.Result
	arrived chan struct{}
	next    int
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	g := &rig{
		t: t, ledger: newLedger(), dir: t.TempDir(),
		results: map[journal.ID]agentproto.Result{}, arrived: make(chan struct{}, 1),
	}
	own, err := proc.NewAccounts().Lookup(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	g.account = own.Name
	log := logrus.New()
	log.SetOutput(io.Discard)
	g.cfg = testConfig(Config{
		Ledger: g.ledger, Log: log, RunDir: t.TempDir(), AgentID: "agent-1", Instance: t.Name(), Finished: g.finished,
		Timing: Timing{
			Timing: procop.Timing{
				StopPoll: 20 * time.Millisecond, WindowPoll: 20 * time.Millisecond, Settle: time.Second,
				ForegroundAfter: 300 * time.Millisecond, KillWait: 3 * time.Second, ReloadWait: 200 * time.Millisecond,
				KillGrace: 300 * time.Millisecond, TerminateGrace: 300 * time.Millisecond,
			},
			Sweep: 200 * time.Millisecond, RecoverDelay: 50 * time.Millisecond,
			JournalRetry: 20 * time.Millisecond, TrimOutputs: 100 * time.Millisecond,
		},
	})
	for _, fn := range change {
		fn(&g.cfg)
	}
	install(t, g.dir, demoName)
	g.open()
	t.Cleanup(g.close)
	return g
}

// testConfig returns c with callbacks that do nothing, and deadlines by the host's clock.
func testConfig(c Config) Config {
	c.Restarted, c.Changed, c.Emit, c.Crash = func() {}, func() {}, func(agentproto.Event) {}, func(string) {}
	c.InTime = func(deadline time.Time) bool { return time.Now().Before(deadline) }
	return c
}

// install copies the test binary under the name of a managed program.
func install(t *testing.T, dir, name string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if os.Link(self, path) == nil {
		return
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

func (g *rig) open() { g.openFrozen(agentproto.Settings{}) }

// openFrozen starts an engine that has the server's settings from the beginning.
func (g *rig) openFrozen(s agentproto.Settings) {
	g.t.Helper()
	engine, err := New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	engine.Apply(s)
	engine.Recover(g.ledger.recovered())
	engine.Resume()
	g.engine = engine
}

// crash ends the engine without draining, as SIGKILL would: work in progress is abandoned.
func (g *rig) crash() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	g.engine.Stop(ended)
}

func (g *rig) close() {
	g.crash()
	for mark := range g.marks() {
		g.eventually("all processes of the test are gone", func() bool {
			strays, err := g.engine.host.Finder.Orphans(proc.KillScope{Key: mark})
			for _, p := range strays { // a process that is forking now may leave another one
				err = errors.Join(err, proc.Signal(p.Identity, syscall.SIGKILL))
			}
			return err == nil && len(strays) == 0
		})
	}
}

// mark returns the environment mark of the rig's own program.
func (g *rig) mark() string {
	spec := g.spec()
	return g.engine.host.Mark(&spec)
}

// marks returns the environment marks of all programs in submitted operations.
func (g *rig) marks() map[string]bool {
	g.ledger.mu.Lock()
	defer g.ledger.mu.Unlock()
	marks := map[string]bool{g.mark(): true}
	for _, op := range g.ledger.ops {
		marks[g.engine.host.Mark(&op.Spec)] = true
	}
	return marks
}

func (g *rig) finished(op journal.Op, r agentproto.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.results[op.ID] = r
	select {
	case g.arrived <- struct{}{}:
	default:
	}
}

// spec returns the spec of a resident daemon that writes a pid file at once and appends each
// start to a file.
func (g *rig) spec(change ...func(*agentproto.Spec)) agentproto.Spec {
	s := agentproto.Spec{
		Key: g.dir, ProcName: demoName, SetupPath: g.dir, PidPath: filepath.Join(g.dir, "demo.pid"),
		StartCmd: started(""), Account: g.account, NoProfile: true, Type: procspec.Resident, OpTimeoutMS: patience.Milliseconds(),
		StartCheckBeginMS: 200, StartCheckEndMS: 300, StopCheckMS: 5_000, StartRetries: 4, StartIntervalMS: 100,
		// Without this, programs with the race detector take a second to exit.
		Env: map[string]string{"GORACE": "atexit_sleep_ms=0"},
	}
	for _, fn := range change {
		fn(&s)
	}
	return s
}

// daemon returns a start command that counts the start and runs a demo in the background.
func daemon(args string) string {
	return "echo >>starts; setsid ./demo " + args + " >/dev/null 2>&1 </dev/null &"
}

// started returns a start command like daemon, which ends when the demo has written its pid file: on a busy machine
// that may take longer than the start window.
func started(args string) string { return daemon("-pid demo.pid "+args) + " " + pidWritten }

// term sends SIGTERM to the demo. The agent can see a demo that has not written its pid file yet.
const term = pidWritten + "kill $(cat demo.pid)"

// pidWritten waits for the pid file of the first demo.
const pidWritten = "until [ -s demo.pid ]; do sleep 0.02; done; "

// pidLives waits until the pid file names a live process: on a busy machine the demo may need longer
// than the start window.
const pidLives = "until kill -0 $(cat demo.pid) 2>/dev/null; do sleep 0.02; done"

func (g *rig) starts() int {
	text, err := os.ReadFile(filepath.Join(g.dir, "starts"))
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "\n")
}

// submit submits an operation and returns its ID.
func (g *rig) submit(action string, spec agentproto.Spec) journal.ID {
	g.mu.Lock()
	g.next++
	id := journal.ID{Task: "GSETASK:1:" + strconv.Itoa(g.next), Item: 0}
	fence := int64(g.next)
	g.mu.Unlock()
	op := journal.Op{ID: id, Lane: "s", Fence: fence, Action: action, Spec: spec, AcceptedAt: time.Now().UTC(), ReceivedAt: time.Now().UTC()}
	g.ledger.receive(op)
	g.engine.Submit(op)
	return id
}

func (g *rig) result(id journal.ID) agentproto.Result {
	g.t.Helper()
	deadline := time.After(patience)
	for {
		g.mu.Lock()
		r, ok := g.results[id]
		g.mu.Unlock()
		if ok {
			return r
		}
		select {
		case <-g.arrived:
		case <-time.After(20 * time.Millisecond): // another waiter may have received the signal
		case <-deadline:
			g.t.Fatalf("no result of %v", id)
		}
	}
}

func (g *rig) do(action string, spec agentproto.Spec) agentproto.Result {
	g.t.Helper()
	return g.result(g.submit(action, spec))
}

// want carries out an operation and checks the code and the prefix of the message.
func (g *rig) want(action string, spec agentproto.Spec, code int, message string) agentproto.Result {
	g.t.Helper()
	return g.check(g.do(action, spec), code, message)
}

// startDeaf starts a program that ignores SIGTERM. It returns once the program does so: the
// program then writes its pid file, which may be late on a busy machine.
func (g *rig) startDeaf(spec agentproto.Spec) (pid int) {
	g.t.Helper()
	pid = g.want("start", spec, 0, "").Status.PID
	g.eventually("the program has written its pid file", func() bool {
		text, err := os.ReadFile(spec.PidPath)
		return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(pid)
	})
	return pid
}

func (g *rig) check(r agentproto.Result, code int, message string) agentproto.Result {
	g.t.Helper()
	if r.Code != code || !strings.HasPrefix(r.Message, message) || code == 0 && r.Message != "success" {
		g.t.Fatalf("result is %d %q (%s, warnings %q), want %d %q", r.Code, r.Message, evidence(r), r.Warnings, code, message)
	}
	wantStatus := code != agentproto.CodeAgentAbnormal && code != agentproto.CodeUnknownAction
	if (r.Status != nil) != wantStatus {
		g.t.Fatalf("result %d has status %v", code, r.Status)
	}
	return r
}

func evidence(r agentproto.Result) string {
	if r.Status == nil {
		return "no status"
	}
	return fmt.Sprintf("pid %d %s: %s", r.Status.PID, r.Status.Phase, r.Status.Evidence)
}

func (g *rig) warned(r agentproto.Result, part string) {
	g.t.Helper()
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, part) }) {
		g.t.Fatalf("warnings are %q, want one with %q", r.Warnings, part)
	}
}

func (g *rig) says(r agentproto.Result, part string) {
	g.t.Helper()
	if !strings.Contains(r.Message, part) {
		g.t.Fatalf("message is %q, want it to contain %q", r.Message, part)
	}
}

func (g *rig) status(spec agentproto.Spec) agentproto.Status {
	g.t.Helper()
	r := g.do("status", spec)
	if r.Status == nil {
		g.t.Fatalf("status has no facts: %d %s", r.Code, r.Message)
	}
	return *r.Status
}

// becomes waits for a status that the predicate accepts, and returns it.
func (g *rig) becomes(spec agentproto.Spec, what string, is func(agentproto.Status) bool) agentproto.Status {
	g.t.Helper()
	var last agentproto.Status
	g.eventually(what, func() bool {
		last = g.status(spec)
		return is(last)
	})
	return last
}

func (g *rig) eventually(what string, is func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			g.t.Fatalf("waited %s in vain: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// running returns the pids of the demo processes with the mark of the rig's key.
func (g *rig) running() []int {
	g.t.Helper()
	strays, err := g.engine.host.Finder.Orphans(proc.KillScope{Key: g.mark()})
	if err != nil {
		g.t.Fatal(err)
	}
	var pids []int
	for _, p := range strays {
		if id, err := proc.Identify(p.PID); err == nil && id == p.Identity && isDemo(p.PID) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

func isDemo(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == demoName
}

// sigkill kills a process and waits until it is gone.
func sigkill(t *testing.T, pid int) {
	t.Helper()
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Signal(id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); proc.Alive(id); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s outlives SIGKILL", id)
		}
	}
}
