package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// suspended is a virtual machine and a worker. Both clocks of the virtual machine stop together, as
// while it is suspended; the worker's clock continues.
type suspended struct {
	*host

	exchanges atomic.Int64 // announcements that were answered
	mu        sync.Mutex
	server    time.Time
}

func (s *suspended) time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// pass advances the worker's clock, but not the clocks of the virtual machine.
func (s *suspended) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = s.server.Add(d)
}

func newSuspended(t *testing.T) *suspended {
	t.Helper()
	h, _ := newHost(t)
	s := &suspended{host: h, server: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)}
	h.answerTime(s.time, func(agentproto.Presence) { s.exchanges.Add(1) })
	h.cfg.PresenceInterval = time.Hour
	a, err := New(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.newEngine = func(c operate.Config) (Engine, error) {
		h.engine = &fakeEngine{cfg: c}
		return h.engine, nil
	}
	a.newClock = func() *clock {
		stopped := reading{wall: time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC), monotonic: time.Hour}
		return &clock{known: make(chan struct{}), read: func() reading { return stopped }}
	}
	h.stop = runAgent(t, a)
	h.waitReachable()
	testenv.Eventually(t, patience, func() bool { return s.exchanges.Load() >= 2 }, "the agent has announced itself, and as often as it does for an hour")
	return s
}

// sent returns a command that was sent at the given time and may be accepted for
// ten seconds.
func (s *suspended) sent(task string, at time.Time) *agentproto.Command {
	c := s.starts(task, 0)
	c.Sent, c.AcceptBefore = at, at.Add(10*time.Second)
	return c
}

func TestGuestWhoseClocksStoppedAcceptsNoStaleCommand(t *testing.T) {
	t.Parallel()
	s := newSuspended(t)
	if r := s.command(s.sent("before", s.time())); r.Refused != "" {
		t.Fatalf("before the guest was suspended: %+v", r)
	}
	stale := s.time().Add(time.Minute)
	s.pass(5 * time.Minute)
	if r := s.command(s.sent("stale", stale)); r.Refused != agentproto.RefusedExpired {
		t.Errorf("a command of four minutes ago: %+v", r)
	}
	if r := s.command(s.sent("fresh", s.time())); r.Refused != "" {
		t.Errorf("a command of now: %+v", r)
	}
}

func TestManyCommandsAfterASuspensionShareOneExchangeOfTime(t *testing.T) {
	t.Parallel()
	s := newSuspended(t)
	s.pass(time.Hour)
	before := s.exchanges.Load()
	replies, err := s.conn.SubscribeSync(nats.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	const commands = 1000
	for i := range commands {
		c := s.sent("task", s.time())
		c.Items[0].Item = i
		data, err := agentproto.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.conn.PublishRequest(s.cfg.subject(), replies.Subject, data); err != nil {
			t.Fatal(err)
		}
	}
	for range commands {
		if _, err := replies.NextMsg(patience); err != nil {
			t.Fatal(err)
		}
	}
	s.engine.waitFor(t, 1)
	if n := s.exchanges.Load() - before; n < 1 || n > 3 { // one, and what a late answer at the start makes it repeat
		t.Errorf("the time was exchanged %d times for %d commands", n, commands)
	}
}

// Without the server's time the agent accepts no command: by the host's clock, which may be wrong by
// days, an expired command could seem to be in time.
func TestNothingIsAcceptedWhileTheServersTimeIsUnknown(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.timed = true
	h.start(nil)
	if r := h.command(h.starts("task", 0)); r.Refused != agentproto.RefusedExpired || !strings.Contains(r.Message, "no worker replied") {
		t.Errorf("reply %+v", r)
	}
	h.answerPresence(0, func(agentproto.Presence) {})
	if r := h.command(h.starts("task", 0)); r.Refused != "" {
		t.Errorf("with a worker that tells the time: %+v", r)
	}
	h.engine.waitFor(t, 1)
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	if !h.engine.resumed {
		t.Error("a new operation began before the recovered ones were judged")
	}
}

// In TestExpiredWorkIsNotExecutedAfterARestart an operation was accepted and not begun, and the host was
// off for three days, but its hardware clock advanced by seconds only.
func TestExpiredWorkIsNotExecutedAfterARestart(t *testing.T) {
	t.Parallel()
	for what, later := range map[string]struct {
		by       time.Duration
		deadline bool
		message  string // "" = it is done
	}{
		"three days later":                {by: 72 * time.Hour, deadline: true, message: "not executed"},
		"three days, without a deadline":  {by: 72 * time.Hour, message: "not executed"},
		"at once":                         {},
		"at once, with a deadline to run": {deadline: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h, _ := newHost(t)
			h.cfg.PresenceInterval = 50 * time.Millisecond
			var server atomic.Pointer[func() time.Time] // the server's clock
			tell := func(now func() time.Time) { server.Store(&now) }
			tell(time.Now)
			h.answerTime(func() time.Time { return (*server.Load())() }, func(agentproto.Presence) {})
			h.start(make(chan struct{})) // begins nothing
			ran := filepath.Join(t.TempDir(), "ran")
			c := h.touches("task", ran)
			if later.deadline {
				c.NotAfter = time.Now().Add(time.Hour)
			}
			if r := h.command(c); len(r.Items) != 1 || r.Items[0].Result != nil {
				t.Fatalf("reply %+v", r)
			}
			h.engine.waitFor(t, 1)
			tell(func() time.Time { return time.Time{} })
			if err := h.stop(); err != nil {
				t.Fatal(err)
			}
			a, err := New(h.cfg)
			if err != nil {
				t.Fatal(err)
			}
			runAgent(t, a)
			h.waitReachable()
			tell(func() time.Time { return time.Now().Add(later.by) })
			r := h.inbox.next().Results.Results[0]
			if !strings.Contains(r.Message, later.message) || (r.Reason == agentproto.ReasonRefused) != (later.message != "") {
				t.Errorf("result %+v", r)
			}
			if _, err := os.Stat(ran); (err == nil) != (later.message == "") {
				t.Errorf("the start command ran: %v", err == nil)
			}
		})
	}
}

// touches returns a command whose start command creates a file.
func (h *host) touches(task, file string) *agentproto.Command {
	h.t.Helper()
	c := h.starts(task, 0)
	spec, err := json.Marshal(agentproto.Spec{
		Key: "touch", ProcName: "touch", StartCmd: "touch " + file, Type: "once", OpTimeoutMS: patience.Milliseconds(), SetupPath: filepath.Dir(file), NoProfile: true,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	c.Specs[0] = spec
	return c
}
