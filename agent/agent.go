package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// Agent is a configured agent. It does nothing before Run.
type Agent struct {
	cfg       Config
	newEngine func(operate.Config) (engine, error)
	newClock  func() *clock
	prompt    time.Duration // promptWithin, longer in tests that need every result in the reply
	metrics   *metrics
	// session is the run under way once it has taken over what an earlier
	// process left; nil before and after.
	session atomic.Pointer[session]
}

// engine is the part of an [operate.Engine] that the agent drives.
type engine interface {
	Apply(agentproto.Settings)
	Recover(journal.Recovered)
	Resume()
	Submit(journal.Op)
	Supervised() int
	Survey() operate.Survey
	Processes() []agentproto.ManagedProcess
	Overview() []local.Process
	Stop(context.Context)
}

// identity is who the agent says it is, and how it proves that.
type identity struct {
	*authenticator

	cloud    int64
	host     string // "<cloud>:<ip>"
	instance string
	// incarnation is random for each run: a copy of the data folder has
	// another one.
	incarnation string
}

// Bounds of stopping.
const (
	flushTimeout = 5 * time.Second // for results that are ready, and events
	leaveTimeout = 2 * time.Second // for the last announcement
	unitTimeout  = 5 * time.Second // for systemd to say what unit this is
)

// New checks the configuration. It opens nothing.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	cfg.Log = cfg.Log.WithFields(map[string]any{"component": "agent", "host": cfg.host()})
	a := &Agent{cfg: cfg, newEngine: func(c operate.Config) (engine, error) { return operate.New(c) }, newClock: newClock, prompt: promptWithin}
	if m := cfg.Machine; m != nil {
		a.newEngine, a.newClock = m.Engine, m.newClock
	}
	var err error
	if a.metrics, err = newMetrics(cfg.Meter, a); err != nil {
		return nil, fmt.Errorf("agent: metrics: %w", err)
	}
	return a, nil
}

// Run works until ctx ends, then stops in good order and returns nil: no new
// commands, running ones get [Config.DrainTimeout], results that are ready are
// sent. Supervised processes are left alone. An error says what keeps
// the agent from working at all: a data folder in use, a disk that cannot be
// read, a connection that was closed.
func (a *Agent) Run(ctx context.Context) (err error) {
	data, err := openFolder(a.cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	ledger, recovered, err := a.openJournal(data.journal())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	ledger.OnWrite(a.metrics.written)
	ledger.OnCrash(a.cfg.Crash)

	s, err := a.newSession(ctx, data, ledger)
	if err != nil {
		return err
	}
	s.reportCopiedFolder()
	// From here on commands wait for the agent instead of finding no responder.
	// Without a connection processes are looked after, and commands follow.
	var sub *nats.Subscription
	if a.cfg.Conn.IsConnected() {
		if sub, err = s.subscribe(ctx); err != nil || sub == nil {
			s.stop(context.WithoutCancel(ctx), nil)
			return err
		}
	}
	s.tellOfJournal(recovered)
	for _, op := range recovered.Unacknowledged {
		s.reporter.add(op.ID, op.Lane, op.Trace)
	}
	s.settings.begin(ctx)
	s.engine.Recover(recovered)
	a.session.Store(s)
	defer context.AfterFunc(ctx, func() { a.session.Store(nil) })()
	defer a.session.Store(nil)
	return s.run(ctx, sub)
}

// openJournal opens the journal. One that cannot be understood leaves the
// agent at work without it: it says in every answer what is wrong, and
// changes nothing on the host.
func (a *Agent) openJournal(dir string) (*journal.Journal, journal.Recovered, error) {
	ledger, recovered, err := journal.Open(dir, a.cfg.Log)
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewerFormat) {
		a.cfg.Log.WithError(err).Error("journal unusable: supervision off, changes refused")
		return journal.Unavailable(err, a.cfg.Log), journal.Recovered{}, nil
	}
	return ledger, recovered, err
}

// session is one run of an agent.
type session struct {
	cfg       Config
	self      identity
	requests  *requester
	folder    *folder
	ledger    *journal.Journal
	engine    engine
	intake    *intake
	reporter  *reporter
	events    *events
	settings  *settingsKeeper
	servers   *clock
	announcer *announcer
	processes *processReporter
	unsafe    atomic.Pointer[[]hostcheck.Finding] // nil = not known yet
}

func (a *Agent) newSession(ctx context.Context, data *folder, ledger *journal.Journal) (*session, error) {
	self := identity{
		authenticator: &authenticator{keys: a.cfg.Keys, metrics: a.metrics, log: a.cfg.Log},
		cloud:         a.cfg.Cloud, host: a.cfg.host(), instance: data.instance, incarnation: rand.Text(),
	}
	servers := a.newClock()
	requests := &requester{authenticator: self.authenticator, conn: a.cfg.Conn, clock: servers}
	s := &session{cfg: a.cfg, self: self, requests: requests, folder: data, ledger: ledger, servers: servers}
	answering := newPrompt(a.prompt)
	s.reporter = newReporter(requests, ledger, self, &s.cfg)
	s.events = newEvents(requests, self, a.metrics, &s.cfg)
	s.processes = newProcessReporter(&s.cfg, self, servers)
	var err error
	s.engine, err = a.newEngine(operate.Config{
		Ledger: ledger, Log: a.cfg.Log, AgentID: a.cfg.AgentID, Instance: data.instance, RunDir: data.run(),
		Scopes: a.cfg.Machine == nil && endsProcesses(ctx), InTime: servers.surelyBefore, Timing: a.cfg.Timing, Crash: a.cfg.Crash,
		Restarted: a.metrics.restarted, Changed: s.processes.change, Tell: s.events.tell,
		Finished: func(op journal.Op, r agentproto.Result) {
			a.metrics.finished(op.Action, r.Code)
			if !answering.take(op.ID, &r) {
				s.reporter.add(op.ID, op.Lane, op.Trace)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.processes.engine = s.engine
	s.settings = newSettingsKeeper(&s.cfg, data, requests, self, s.engine)
	s.intake = &intake{
		ledger: ledger, engine: s.engine, reporter: s.reporter, prompt: answering, settings: s.settings, clock: servers, self: self,
		crash: a.cfg.Crash, log: a.cfg.Log,
	}
	s.announcer = newAnnouncer(&s.cfg, requests, self, s.engine)
	s.intake.sync = s.announcer.sync
	s.intake.resume = sync.OnceFunc(s.engine.Resume)
	return s, nil
}

func (s *session) run(ctx context.Context, sub *nats.Subscription) error {
	work, stopWork := context.WithCancel(ctx)
	var workers sync.WaitGroup
	// The first announcement brings the server's time, by which commands and
	// recovered operations are judged; meanwhile they wait.
	s.announcer.announceFirst(work)
	workers.Go(func() {
		select {
		case <-work.Done():
		case <-s.servers.known:
			s.intake.resume()
		}
	})
	workers.Go(func() {
		s.announcer.run(work, func() {
			s.reporter.retryNow()
			s.events.retryNow()
			s.settings.changed()
			s.processes.change()
		})
	})
	workers.Go(func() { s.processes.run(work) })
	workers.Go(func() { s.reporter.run(work) })
	workers.Go(func() { s.events.run(work) })
	workers.Go(func() { s.settings.run(work) })
	workers.Go(func() { s.watchOwnTime(work) })
	workers.Go(func() { s.watchOthers(work) })
	workers.Go(func() { s.keepFolder(work) })
	if os.Getpid() == 1 {
		workers.Go(func() { proc.ReapOrphans(work) })
	}
	if s.cfg.Machine == nil {
		workers.Go(func() { s.answerHost(work) })
		workers.Go(func() { s.checkHost(work) })
	}
	var err error
	if sub == nil {
		sub, err = s.subscribeOnceConnected(work)
	}
	if sub != nil {
		err = s.intake.run(work, sub)
	}
	stopWork()
	workers.Wait()
	s.stop(context.WithoutCancel(ctx), sub)
	return err
}

// stop ends everything in the order in which nothing is lost: what comes in
// is turned away, then what runs gets its time, then results leave. A session
// that did not subscribe to commands yet has no sub.
func (s *session) stop(ctx context.Context, sub *nats.Subscription) {
	s.cfg.Log.Info("stopping")
	if sub != nil {
		s.intake.turnAway(sub)
	}
	within(ctx, s.cfg.DrainTimeout, s.engine.Stop)
	within(ctx, flushTimeout, s.flush)
	within(ctx, leaveTimeout, s.announcer.leave)
	s.cfg.Log.WithField("unsent", s.reporter.waiting()).Info("stopped")
}

// flush sends what waits.
func (s *session) flush(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { s.reporter.flush(ctx) })
	both.Go(func() { s.events.flush(ctx) })
	both.Wait()
}

func within(ctx context.Context, limit time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	do(ctx)
}

func newHeader(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: uuid.NewString(), Sent: time.Now().UTC()}
}
